//! Error feedback: the residuals of tensors, kept by an owner.

use crate::{Error, Result, core::codec::Codec, feedback::Feedback, log};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

/// The residual of one tensor on this rank: the part that its messages lacked up to now.
#[derive(Clone, Debug, PartialEq)]
pub struct Residual {
    /// The tensor's name.
    pub tensor: String,
    /// How many operations on it are complete.
    pub steps: u64,
    /// The codec that has left it. A state that was saved without takes the codec of the next operation.
    pub codec: Option<Codec>,
    /// For each element.
    pub left: Vec<f32>,
}

/// The residuals of the tensors of one owner, such as an optimizer, a hook or a store, on this rank.
///
/// A tensor's name has a meaning only for its owner. A residual also belongs to one codec, one group and one length: if
/// one of these is different in the next operation, the residual is dropped. Clones are the same owner, and the last
/// one frees the memory.
///
/// ```
/// use herringbone::{Compression, ReduceOp, Residuals};
///
/// for comm in herringbone::local(1)? {
///     let optimizer = Residuals::new();
///     let compression = Compression::of("twobit:0.5".parse()?).tensor("layer1").kept_by(&optimizer);
///     comm.all_reduce_compressed(&mut [0.25; 4], ReduceOp::Sum, compression)?;
///     assert_eq!(optimizer.saved()[0].left, [0.25; 4]);
///     assert_eq!(comm.residuals().saved(), []);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Default)]
pub struct Residuals(Arc<Mutex<Kept>>);

#[derive(Default)]
struct Kept {
    tensors: BTreeMap<String, KeptTensor>,
    /// Why tensors were dropped, as far as it was said.
    said: BTreeSet<String>,
}

struct KeptTensor {
    feedback: Arc<Feedback>,
    codec: Option<Codec>,
    /// The residuals that the group itself keeps stand for it; of a state that was just restored there is none.
    group: Option<Weak<Mutex<Kept>>>,
}

/// An operation on a tensor, as far as what is left of it belongs to that.
#[derive(Clone, Copy)]
pub(crate) struct CodedOperation<'a> {
    pub(crate) codec: Codec,
    pub(crate) elements: usize,
    /// Those that the group itself keeps.
    pub(crate) group: &'a Residuals,
    pub(crate) rank: u32,
}

impl Residuals {
    /// An owner without residuals.
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is left of a tensor: nothing if it is new, or belongs to another codec, group or length.
    pub(crate) fn of(&self, tensor: &str, operation: CodedOperation<'_>) -> Arc<Feedback> {
        let mut kept = self.lock();
        let Kept { tensors, said } = &mut *kept;
        let group = Arc::downgrade(&operation.group.0);
        if let Some(known) = tensors.get_mut(tensor) {
            let Some(why) = known.foreign_to(operation, &group) else {
                (known.codec, known.group) = (Some(operation.codec), Some(group));
                return known.feedback.clone();
            };
            known.say_dropped(tensor, why, said, operation.rank);
            tensors.remove(tensor);
        }
        let feedback = Arc::new(Feedback::new(operation.elements));
        let new = KeptTensor { feedback: feedback.clone(), codec: Some(operation.codec), group: Some(group) };
        tensors.insert(tensor.to_owned(), new);
        feedback
    }

    /// A tensor is sent without a codec from now on. What codecs have left of it would be out of date when one comes again.
    pub(crate) fn drop_of(&self, tensor: &str, rank: u32) {
        let mut kept = self.lock();
        if let Some(dropped) = kept.tensors.remove(tensor) {
            dropped.say_dropped(tensor, "it is not compressed any more".to_owned(), &mut kept.said, rank);
        }
    }

    /// A group with other members follows that which keeps these, and starts without.
    pub(crate) fn say_all_dropped(&self, rank: u32) {
        let tensors = match self.lock().tensors.len() {
            0 => return,
            1 => "a tensor".to_owned(),
            many => format!("{many} tensors"),
        };
        log::warn(
            &format!("rank {rank}"),
            format_args!(
                "the compression error of {tensors} is dropped: the group continues with other members"
            ),
        );
    }

    /// Nothing is left of a tensor any more.
    pub fn forget(&self, tensor: &str) {
        self.lock().tensors.remove(tensor);
    }

    /// Multiplies the residual of each tensor, for example by the ratio of two learning rates. Call it between
    /// operations: the residual of an operation under way is not multiplied.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if the factor is not finite; all is left as it is.
    pub fn scale(&self, factor: f32) -> Result<()> {
        if !factor.is_finite() {
            let problem = format_args!("residuals are multiplied by {factor}: pass a finite number");
            return Err(Error::unsupported(problem));
        }
        self.lock().tensors.values().for_each(|known| known.feedback.scale(factor));
        Ok(())
    }

    /// The next operation on each tensor can have another codec, and uses the residual. A receiver lacks the same data
    /// whichever codec has dropped it. By default the residual is dropped, because the program has not asked for
    /// another codec.
    pub fn release_codecs(&self) {
        self.lock().tensors.values_mut().for_each(|known| known.codec = None);
    }

    /// All residuals, by name, to be kept with a checkpoint of this rank. If an operation is under way, this is the
    /// residual before it.
    pub fn saved(&self) -> Vec<Residual> {
        let saved = |(tensor, KeptTensor { feedback, codec, .. }): (&String, &KeptTensor)| {
            let (steps, left) = feedback.committed();
            Residual { tensor: tensor.clone(), steps, codec: *codec, left }
        };
        let kept = self.lock();
        let tensors = kept.tensors.iter().filter(|(_, tensor)| tensor.feedback.has_begun());
        tensors.map(saved).collect()
    }

    /// A tensor's residual after the operations on it that are complete; `None` before the first one begins.
    pub fn left(&self, tensor: &str) -> Option<Vec<f32>> {
        let kept = self.lock();
        let known = kept.tensors.get(tensor).filter(|known| known.feedback.has_begun());
        known.map(|known| known.feedback.committed().1)
    }

    /// Continues with the residuals of a checkpoint, which replace all current ones.
    pub fn restore(&self, saved: Vec<Residual>) {
        let restored = |Residual { tensor, steps, codec, left }| {
            (tensor, KeptTensor { feedback: Arc::new(Feedback::of(steps, left)), codec, group: None })
        };
        self.lock().tensors = saved.into_iter().map(restored).collect();
    }
}

/// Clones of one owner are equal, and no others.
impl PartialEq for Residuals {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Residuals {}

impl fmt::Debug for Residuals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Residuals of {} tensors", self.lock().tensors.len())
    }
}

impl KeptTensor {
    /// Why what is left of it is not for this operation, if it is not.
    fn foreign_to(&self, operation: CodedOperation<'_>, group: &Weak<Mutex<Kept>>) -> Option<String> {
        let CodedOperation { codec, elements, .. } = operation;
        let before = self.feedback.len();
        match (self.codec, &self.group) {
            _ if before != elements => Some(format!("it has {elements} elements now, and had {before}")),
            (Some(other), _) if other != codec => {
                Some(format!("it is compressed with {codec} now, and was with {other}"))
            }
            (_, Some(other)) if !other.ptr_eq(group) => Some("it is reduced in another group now".to_owned()),
            _ => None,
        }
    }

    /// Each reason once, and not at all if nothing is lost.
    fn say_dropped(&self, tensor: &str, why: String, said: &mut BTreeSet<String>, rank: u32) {
        if self.feedback.is_zero() || said.contains(&why) {
            return;
        }
        log::warn(
            &format!("rank {rank}"),
            format_args!("the compression error of {tensor:?} is dropped: {why} (this warning comes once)"),
        );
        said.insert(why);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::feedback::Fed;

    /// Sends an element of 0.375 in a block of which the codec leaves something; what is left then, and the steps.
    fn reduced(owner: &Residuals, tensor: &str, codec: &str, group: &Residuals) -> (u64, Vec<f32>) {
        let codec = codec.parse().unwrap();
        let feedback = owner.of(tensor, CodedOperation { codec, elements: 2, group, rank: 0 });
        let fed = Fed::next(&feedback);
        fed.allocate().unwrap();
        fed.lock().encode(codec, 0..2, &[127.0, 0.375], &mut Vec::new());
        fed.end(true);
        feedback.committed()
    }

    #[test]
    fn what_is_left_belongs_to_one_owner_one_codec_and_one_group() {
        let [group, other_group, owner, other] = [(); 4].map(|()| Residuals::new());
        let first = (1, vec![0.0, 0.375]);
        assert_eq!(reduced(&owner, "w", "int8", &group), first);
        assert_eq!(reduced(&other, "w", "int8", &group), first, "another owner");
        assert_eq!(reduced(&group, "w", "int8", &group), first, "the group's own");
        assert_eq!(reduced(&owner, "w", "int8", &group).0, 2, "the same");
        assert_eq!(reduced(&owner, "w", "exact", &group), (1, vec![0.0; 2]), "another codec");
        assert_eq!(reduced(&owner, "w", "int8", &group), first, "and again");
        assert_eq!(reduced(&owner, "w", "int8", &other_group), first, "another group");
        owner.drop_of("w", 0);
        assert_eq!(owner.saved(), []);
        assert_eq!((other.saved().len(), group.saved().len()), (1, 1));
    }

    #[test]
    fn what_is_left_is_multiplied_and_can_go_to_another_codec() {
        let (group, owner) = (Residuals::new(), Residuals::new());
        reduced(&owner, "w", "int8", &group);
        owner.scale(2.0).unwrap();
        assert_eq!(owner.saved()[0].left, [0.0, 0.75]);
        for factor in [f32::INFINITY, f32::NAN] {
            let error = owner.scale(factor).unwrap_err();
            assert!(matches!(error.kind(), crate::ErrorKind::Unsupported { .. }), "{error}");
        }
        assert_eq!(owner.saved()[0].left, [0.0, 0.75], "as it was");
        owner.release_codecs();
        assert_eq!(reduced(&owner, "w", "topk:0.5", &group), (2, vec![0.0, 1.125]), "0.75 and 0.375");
        assert_eq!(owner.saved()[0].codec, Some("topk:0.5".parse().unwrap()));
        assert_eq!(reduced(&owner, "w", "int8", &group).0, 1, "released once");
    }

    #[test]
    fn a_product_is_always_a_finite_number() {
        let owner = Residuals::new();
        let left = vec![f32::INFINITY, f32::NAN, f32::MAX, -f32::MAX, 1.0];
        owner.restore(vec![Residual { tensor: "w".to_owned(), steps: 1, codec: None, left }]);
        owner.scale(2.0).unwrap();
        assert_eq!(owner.saved()[0].left, [f32::MAX, 0.0, f32::MAX, -f32::MAX, 2.0]);
        owner.restore(vec![Residual {
            tensor: "w".to_owned(),
            steps: 1,
            codec: None,
            left: vec![f32::INFINITY],
        }]);
        owner.scale(0.0).unwrap();
        assert_eq!(owner.saved()[0].left, [0.0]);
    }

    #[test]
    fn what_is_dropped_is_said_once_for_each_reason() {
        let (group, owner) = (Residuals::new(), Residuals::new());
        for _ in 0..3 {
            for tensor in ["w", "v"] {
                reduced(&owner, tensor, "int8", &group);
            }
            for tensor in ["w", "v"] {
                reduced(&owner, tensor, "exact", &group);
            }
        }
        let said = |owner: &Residuals| owner.lock().said.iter().cloned().collect::<Vec<_>>();
        assert_eq!(
            said(&owner),
            ["it is compressed with exact now, and was with int8"],
            "exact leaves nothing"
        );
        reduced(&owner, "w", "int8", &group);
        owner.drop_of("w", 0);
        assert_eq!(said(&owner).len(), 2);
    }

    #[test]
    fn a_saved_state_goes_to_its_codec_and_one_without_a_codec_to_the_next() {
        let (group, owner) = (Residuals::new(), Residuals::new());
        reduced(&owner, "w", "int8", &group);
        let saved = owner.saved();
        assert_eq!(saved[0].codec, Some(Codec::Int8));
        let restored = |codec, with| {
            let resumed = Residuals::new();
            resumed.restore(saved.iter().cloned().map(|saved| Residual { codec, ..saved }).collect());
            reduced(&resumed, "w", with, &group).0
        };
        assert_eq!(restored(Some(Codec::Int8), "int8"), 2);
        assert_eq!(restored(None, "int8"), 2);
        assert_eq!(restored(Some(Codec::Int8), "sign"), 1);
    }
}

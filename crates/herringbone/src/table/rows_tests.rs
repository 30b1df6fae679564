//! A store that is loaded in blocks while pushes go on becomes the other one, bit for bit.

use super::{
    chunks::{PlacedRows, RowBlock},
    optimizers::OwnOptimizers,
    rows::{Rows, rows_of},
};
use crate::core::{
    element::DType,
    table::{Initializer, OptimizerKind, OptimizerSpec, RowKeys, TableError, TableSpec},
};
use proptest::{collection::vec, prelude::*};

/// Some chunks of rows, the last of which is not full, and a range that does not begin at 0.
const KEYS: std::ops::Range<u64> = 70..1170;

fn empty(spec: &TableSpec, keys: std::ops::Range<u64>) -> Box<dyn Rows> {
    rows_of(spec, &OwnOptimizers::default().find(spec.optimizer).unwrap(), keys)
}

fn any_spec() -> impl Strategy<Value = TableSpec> {
    let optimizers = [
        OptimizerSpec::ADD,
        OptimizerSpec::of(OptimizerKind::Sgd).with("momentum", 0.9).unwrap(),
        OptimizerSpec::of(OptimizerKind::Adam),
    ];
    let dtypes = [DType::F32, DType::F64, DType::Bf16];
    let initializers = [Initializer::Zeros, Initializer::Normal { seed: 3, deviation: 0.1 }];
    (any::<bool>(), 0..3_usize, 0..3_usize, 0..2_usize, 1..200_u32).prop_map(
        move |(sparse, dtype, optimizer, initializer, width)| TableSpec {
            sparse,
            dtype: dtypes[dtype],
            optimizer: optimizers[optimizer],
            initializer: initializers[initializer],
            ..TableSpec::new(2000, width)
        },
    )
}

/// Keys of a push: a run, or scattered ones.
fn any_keys() -> impl Strategy<Value = RowKeys> {
    let length = KEYS.end - KEYS.start;
    prop_oneof![
        (0..length, 1..400_u64).prop_map(move |(from, count)| RowKeys::Run {
            first: KEYS.start + from,
            count: count.min(length - from)
        }),
        vec(KEYS, 0..60).prop_map(|mut keys| {
            keys.sort_unstable();
            keys.dedup();
            RowKeys::Listed(keys.into())
        }),
    ]
}

fn pushed(spec: &TableSpec, keys: &RowKeys, seed: u64) -> Vec<u8> {
    let count = keys.len() * spec.width as usize;
    let number =
        |at: usize| ((at as u64 ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as f64 * 1e-6 - 8.0;
    let bytes = |at| match spec.dtype {
        DType::F64 => number(at).to_le_bytes().to_vec(),
        DType::Bf16 => half::bf16::from_f64(number(at)).to_le_bytes().to_vec(),
        _ => (number(at) as f32).to_le_bytes().to_vec(),
    };
    (0..count).flat_map(bytes).collect()
}

/// All rows with their keys and state, as bytes.
fn image(rows: &dyn PlacedRows) -> Vec<(RowKeys, Vec<u8>)> {
    let (mut blocks, mut next) = (Vec::new(), 0);
    while next < rows.places() {
        let block = rows.block(next, 10_000);
        next = block.next;
        blocks.push((block.keys, block.bytes));
    }
    blocks
}

fn load_all(rows: &dyn PlacedRows, into: &mut dyn Rows) -> Result<(), TableError> {
    into.begin_loading();
    image(rows).iter().try_for_each(|(keys, bytes)| into.load(keys, bytes))?;
    into.end_loading()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_store_catches_up_while_pushes_go_on(
        spec in any_spec(),
        before in vec(any_keys(), 0..6),
        during in vec((any_keys(), 0..3_u32), 0..30),
        most_bytes in 1..60_000_usize,
    ) {
        let (mut source, mut copy) = (empty(&spec, KEYS), empty(&spec, KEYS));
        // What the copy has had before is forgotten.
        copy.push(&RowKeys::Run { first: 80, count: 9 }, &pushed(&spec, &RowKeys::Run { first: 80, count: 9 }, 1));
        before.iter().for_each(|keys| source.push(keys, &pushed(&spec, keys, 2)));
        copy.begin_loading();
        let mut next = 0;
        let mut send = |source: &dyn Rows, copy: &mut dyn Rows| {
            if next < source.placed().places() {
                let RowBlock { keys, bytes, next: after } = source.placed().block(next, most_bytes);
                copy.load(&keys, &bytes).unwrap();
                next = after;
            }
            next < source.placed().places()
        };
        for (number, (keys, blocks)) in during.iter().enumerate() {
            let values = pushed(&spec, keys, number as u64 + 3);
            source.push(keys, &values);
            prop_assert_eq!(copy.needs(keys), 0, "what is ignored takes up nothing");
            copy.push(keys, &values);
            (0..*blocks).for_each(|_| { send(&*source, &mut *copy); });
        }
        while send(&*source, &mut *copy) {}
        copy.end_loading().unwrap();
        prop_assert!(image(source.placed()) == image(copy.placed()));
        // It is a store as any other from now on.
        for (keys, _) in &during {
            let values = pushed(&spec, keys, 1000);
            source.push(keys, &values);
            copy.push(keys, &values);
        }
        prop_assert!(image(source.placed()) == image(copy.placed()));
    }

    #[test]
    fn frozen_rows_stay_as_they_were(
        spec in any_spec(),
        before in vec(any_keys(), 0..6),
        after in vec(any_keys(), 1..6),
    ) {
        let mut store = empty(&spec, KEYS);
        before.iter().for_each(|keys| store.push(keys, &pushed(&spec, keys, 2)));
        let (frozen, then) = (store.freeze(), image(store.placed()));
        after.iter().for_each(|keys| store.push(keys, &pushed(&spec, keys, 3)));
        prop_assert!(image(&*frozen) == then);
        let mut copy = empty(&spec, KEYS);
        load_all(&*frozen, &mut *copy).unwrap();
        after.iter().for_each(|keys| copy.push(keys, &pushed(&spec, keys, 3)));
        prop_assert!(image(store.placed()) == image(copy.placed()));
    }

    #[test]
    fn ranges_of_another_number_take_their_rows(spec in any_spec(), pushes in vec(any_keys(), 0..6), cut in KEYS) {
        let mut whole = empty(&spec, KEYS);
        pushes.iter().for_each(|keys| whole.push(keys, &pushed(&spec, keys, 2)));
        let mut held = 0;
        for range in [KEYS.start..cut, cut..KEYS.end] {
            let mut part = empty(&spec, range.clone());
            load_all(whole.placed(), &mut *part).unwrap();
            held += part.held();
            let keys = RowKeys::Run { first: range.start, count: range.end - range.start };
            let mut expected = vec![0; keys.len() * spec.row_bytes()];
            let mut found = expected.clone();
            whole.read(&keys, &mut expected).unwrap();
            part.read(&keys, &mut found).unwrap();
            prop_assert_eq!(expected, found);
        }
        prop_assert_eq!(held, whole.held());
    }

    #[test]
    fn blocks_that_make_no_sense_are_refused(
        spec in any_spec(),
        (first, count) in any::<(u64, u64)>(),
        listed in vec(any::<u64>(), 0..20),
        bytes in vec(any::<u8>(), 0..2000),
    ) {
        let mut store = empty(&spec, KEYS);
        for keys in [RowKeys::Run { first, count: count.max(1) }, RowKeys::Run { first: 70, count: u64::MAX }, RowKeys::Listed(listed.into())] {
            store.begin_loading();
            // Bytes that are exactly as long as rows of the keys are rows; a key of no row of the range has no place.
            if store.load(&keys, &bytes).is_ok() {
                prop_assert!(keys.len() <= bytes.len() / 6 && store.held() <= keys.len() as u64);
            }
        }
    }
}

#[test]
fn rows_that_are_missing_or_come_twice_are_refused() {
    for sparse in [false, true] {
        let spec = TableSpec { sparse, ..TableSpec::new(2000, 4) };
        let mut store = empty(&spec, KEYS);
        let keys = RowKeys::Run { first: KEYS.start, count: KEYS.end - KEYS.start };
        store.push(&keys, &pushed(&spec, &keys, 5));
        let (first, second) = (store.placed().block(0, 999), store.placed().block(500, 999));
        let mut copy = empty(&spec, KEYS);
        assert!(copy.load(&first.keys, &first.bytes).is_err(), "it does not load");
        copy.begin_loading();
        copy.load(&first.keys, &first.bytes).unwrap();
        assert!(copy.load(&first.keys, &first.bytes).is_err());
        assert_eq!(
            copy.load(&second.keys, &second.bytes).is_ok(),
            sparse,
            "a dense table's rows follow each other"
        );
        assert_eq!(copy.end_loading().is_ok(), sparse, "all rows of a dense table are there");
        assert!(copy.load(&first.keys, &first.bytes[1..]).is_err());
    }
}

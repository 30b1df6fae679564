//! Earlier agreements, so that ranks need one bit to agree about the same operation again.

use super::{NamedCall, NamedRequest, NamedResponse};
use alloc::{
    collections::{BTreeMap, BTreeSet},
    string::String,
    vec::Vec,
};

/// Responses by name, each with a place that is the same on all ranks. They make the same changes in the same order, so
/// the caches of all ranks stay equal except for each rank's own call.
#[derive(Debug)]
pub struct ResponseCache {
    capacity: usize,
    places: Vec<Option<CachedResponse>>,
    by_name: BTreeMap<String, u32>,
    /// Counts uses.
    uses: u64,
}

#[derive(Debug)]
struct CachedResponse {
    /// What this rank asked for.
    own: NamedCall,
    response: NamedResponse,
    used: u64,
}

/// The cache's answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// It was agreed about; this is its place.
    Hit(u32),
    /// The name was agreed about, as something else: the place has to be given up on all ranks.
    Invalid(u32),
    /// It is not known.
    Miss,
}

impl ResponseCache {
    /// A cache of `capacity` responses. A capacity of 0 disables it.
    pub fn new(capacity: usize) -> Self {
        Self { capacity, places: Vec::new(), by_name: BTreeMap::new(), uses: 0 }
    }

    /// How many places there are, in use or not.
    pub fn places(&self) -> usize {
        self.places.len()
    }

    /// Looks for a request of this rank.
    pub fn look(&self, request: &NamedRequest) -> Lookup {
        let Some(place) = self.by_name.get(&request.name) else { return Lookup::Miss };
        let Some(Some(cached)) = self.places.get(*place as usize) else { return Lookup::Miss };
        let group = request.group.as_ref().map(|group| &group.name);
        let is_same = cached.own == request.call
            && cached.response.group.as_ref() == group
            && cached.response.priority == request.priority;
        if is_same { Lookup::Hit(*place) } else { Lookup::Invalid(*place) }
    }

    /// The response at a place, if there is one.
    pub fn get(&self, place: u32) -> Option<&NamedResponse> {
        self.places.get(place as usize)?.as_ref().map(|cached| &cached.response)
    }

    /// The groups with a tensor to which a rank that has joined cannot contribute.
    pub(super) fn groups_without_zeros(&self) -> BTreeSet<String> {
        let cached = self.places.iter().flatten().map(|cached| &cached.response);
        let refused = cached.filter(|response| !response.call.kind.takes_zeros());
        refused.filter_map(|response| response.group.clone()).collect()
    }

    /// The response at a place, which is used now.
    pub fn take(&mut self, place: u32) -> Option<NamedResponse> {
        self.uses += 1;
        let cached = self.places.get_mut(place as usize)?.as_mut()?;
        cached.used = self.uses;
        Some(cached.response.clone())
    }

    /// Keeps a response, at the place of the one that was not used for the longest time if all are taken. `own` is this
    /// rank's call, if it made one.
    pub fn put(&mut self, response: &NamedResponse, own: Option<&NamedCall>) {
        if self.capacity == 0 || !response.call.kind.is_cached() {
            return;
        }
        self.uses += 1;
        let place = self.place_for(&response.name);
        let own = own.unwrap_or(&response.call).clone();
        self.by_name.insert(response.name.clone(), place as u32);
        self.places[place] = Some(CachedResponse { own, response: response.clone(), used: self.uses });
    }

    /// Gives a place up.
    pub fn evict(&mut self, place: u32) {
        if let Some(cached) = self.places.get_mut(place as usize).and_then(Option::take) {
            self.by_name.remove(&cached.response.name);
        }
    }

    fn place_for(&mut self, name: &str) -> usize {
        if let Some(place) = self.by_name.get(name) {
            return *place as usize;
        }
        if let Some(free) = self.places.iter().position(Option::is_none) {
            return free;
        }
        if self.places.len() < self.capacity {
            self.places.push(None);
            return self.places.len() - 1;
        }
        let used =
            |(_, cached): &(usize, &Option<CachedResponse>)| cached.as_ref().map_or(0, |cached| cached.used);
        let oldest = self.places.iter().enumerate().min_by_key(used).map_or(0, |(place, _)| place);
        self.evict(oldest as u32);
        oldest
    }
}

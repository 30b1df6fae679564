//! Trees over the links of a machine: the order in which its devices' arrays are added.

use herringbone::core::topology::{
    self, LinkMatrix,
    trees::{TreeMode, TreeRequest, plan},
};
use pyo3::{exceptions::PyValueError, prelude::*};

/// A tree for each device as the root: its edges from parent to child, a parent's before its children's.
///
/// `text` is a topology in any supported format, `name` one of several in it. The trees are planned as `herringbone trees` does by
/// default.
#[pyfunction]
#[pyo3(signature = (text, name=None))]
pub(crate) fn device_trees(py: Python<'_>, text: &str, name: Option<&str>) -> PyResult<Vec<Vec<[usize; 2]>>> {
    let planned = py.detach(|| {
        let links = LinkMatrix::of(&topology::read(text, name)?)?;
        plan(&links, &TreeRequest::of(TreeMode::Best))
    });
    let set = planned.map_err(|error| PyValueError::new_err(error.to_string()))?;
    Ok(set.trees().iter().map(|tree| tree.edges().to_vec()).collect())
}

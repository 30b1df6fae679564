//! The bytes of a request. It can be sent several times, each time with its keys in the form that the connection knows.

use super::spare;
use crate::{
    core::{
        session::TooLong,
        table::{KeyForm, RequestAddress, RowKeys, TableRequest},
    },
    sys::span::Span,
};
use std::sync::Arc;

/// A request as its bytes.
pub(super) struct RequestMessage {
    request: TableRequest,
    /// How the payload has its keys.
    form: KeyForm,
    payload: Arc<Vec<u8>>,
    /// Where in the payload the values begin.
    values_at: usize,
}

impl RequestMessage {
    /// A request for a range, and its values.
    ///
    /// # Errors
    /// If it has too long a name or too many keys.
    pub(super) fn new(
        range: u32,
        request: TableRequest,
        form: KeyForm,
        values: Span<'_>,
    ) -> Result<Self, TooLong> {
        let address = RequestAddress { range, is_first: false };
        let (payload, values_at) = compose(address, &request, form, values)?;
        Ok(Self { request, form, payload: Arc::new(payload), values_at })
    }

    /// The keys of the request, if it has some.
    pub(super) fn keys(&self) -> Option<&RowKeys> {
        self.request.keys()
    }

    /// The payload with this address, and its keys in this form.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(super) fn payload(
        &mut self,
        address: RequestAddress,
        form: KeyForm,
    ) -> Result<&Arc<Vec<u8>>, TooLong> {
        let head = address.encode();
        if self.form != form {
            let values = Span::of_shared(&self.payload[self.values_at..]);
            let (payload, values_at) = compose(address, &self.request, form, values)?;
            (self.form, self.payload, self.values_at) = (form, Arc::new(payload), values_at);
        } else if self.payload[..RequestAddress::BYTES] != head {
            Arc::make_mut(&mut self.payload)[..RequestAddress::BYTES].copy_from_slice(&head);
        }
        Ok(&self.payload)
    }

    /// The request has been answered: its buffer can be used again.
    pub(super) fn recycle(self) {
        Arc::into_inner(self.payload).into_iter().for_each(spare::keep);
    }
}

/// A payload, and where its values begin.
fn compose(
    address: RequestAddress,
    request: &TableRequest,
    form: KeyForm,
    values: Span<'_>,
) -> Result<(Vec<u8>, usize), TooLong> {
    let head = request.encode_as(form)?;
    let values_at = RequestAddress::BYTES + head.len();
    let mut payload = spare::buffer(values_at + values.len());
    payload[..RequestAddress::BYTES].copy_from_slice(&address.encode());
    payload[RequestAddress::BYTES..values_at].copy_from_slice(&head);
    values.read(&mut payload[values_at..]);
    Ok((payload, values_at))
}

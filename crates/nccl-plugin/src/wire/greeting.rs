//! How a sender finds a receiver, and how its streams prove that they belong to it.
//!
//! A receiver's handle goes to the sender over NCCL's own channel. Each stream then begins with a hello that repeats
//! the handle's secret number, so a connection from anywhere else differs from the sender's.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// How many bytes a handle has: NCCL's `NCCL_NET_HANDLE_MAXSIZE`.
pub(crate) const HANDLE_BYTES: usize = 128;
/// How many bytes the hello of a stream has.
pub(crate) const HELLO_BYTES: usize = 48;
/// The version of all that travels.
pub(crate) const VERSION: u16 = 1;
/// The most streams of a connection.
pub(crate) const MOST_STREAMS: usize = 64;
const MAGIC: [u8; 8] = *b"hrgbnccl";
const NUMBER_BYTES: usize = 16;
/// Where the handle has the number of the connection that is being made with it.
const PENDING_AT: usize = HANDLE_BYTES - 8;

/// A number that nobody guesses.
pub(crate) type SecretNumber = [u8; NUMBER_BYTES];

/// What a receiver tells its sender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListenHandle {
    /// Where the receiver listens.
    pub(crate) address: SocketAddr,
    /// How many streams the connection has, from 1 to [`MOST_STREAMS`].
    pub(crate) streams: usize,
    /// By which the receiver knows its sender.
    pub(crate) token: SecretNumber,
    /// The sender's own: the connection that it is making with this handle, or 0.
    pub(crate) pending: u64,
}

/// Why a handle cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandleProblem {
    /// It is not of this plug-in.
    Foreign,
    /// Its receiver speaks another version.
    Version(u16),
}

impl ListenHandle {
    /// As bytes.
    pub(crate) fn to_bytes(&self) -> [u8; HANDLE_BYTES] {
        let mut bytes = [0; HANDLE_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
        bytes[10] = self.streams as u8;
        bytes[11] = if self.address.is_ipv4() { 4 } else { 6 };
        bytes[12..14].copy_from_slice(&self.address.port().to_le_bytes());
        let ip = match self.address.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        bytes[16..32].copy_from_slice(&ip.octets());
        bytes[32..48].copy_from_slice(&self.token);
        bytes[PENDING_AT..].copy_from_slice(&self.pending.to_le_bytes());
        bytes
    }

    /// From bytes.
    ///
    /// # Errors
    /// If they are no handle of this version.
    pub(crate) fn from_bytes(bytes: &[u8; HANDLE_BYTES]) -> Result<Self, HandleProblem> {
        if bytes[..8] != MAGIC {
            return Err(HandleProblem::Foreign);
        }
        let version = u16::from_le_bytes([bytes[8], bytes[9]]);
        if version != VERSION {
            return Err(HandleProblem::Version(version));
        }
        let octets: [u8; 16] = array(&bytes[16..32]);
        let ip = Ipv6Addr::from(octets);
        let ip = match bytes[11] {
            4 => ip.to_ipv4_mapped().map(|ip: Ipv4Addr| IpAddr::from(ip)),
            6 => Some(ip.into()),
            _ => None,
        };
        let streams = usize::from(bytes[10]);
        let is_possible = (1..=MOST_STREAMS).contains(&streams);
        let ip = ip.filter(|_| is_possible).ok_or(HandleProblem::Foreign)?;
        let address = SocketAddr::new(ip, u16::from_le_bytes([bytes[12], bytes[13]]));
        let pending = u64::from_le_bytes(array(&bytes[PENDING_AT..]));
        Ok(Self { address, streams, token: array(&bytes[32..48]), pending })
    }
}

/// How a stream begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamHello {
    /// The receiver's, from its handle.
    pub(crate) token: SecretNumber,
    /// The sender's, the same on all streams of one connection.
    pub(crate) connection: SecretNumber,
    /// How many streams the connection has.
    pub(crate) streams: u8,
    /// Which of them this is.
    pub(crate) index: u8,
}

impl StreamHello {
    /// As bytes.
    pub(crate) fn to_bytes(self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
        bytes[10] = self.streams;
        bytes[11] = self.index;
        bytes[16..32].copy_from_slice(&self.token);
        bytes[32..].copy_from_slice(&self.connection);
        bytes
    }

    /// From bytes: none if they are no hello to the receiver with this token and so many streams.
    pub(crate) fn from_bytes(
        bytes: &[u8; HELLO_BYTES],
        token: &SecretNumber,
        streams: usize,
    ) -> Option<Self> {
        let is_ours = bytes[..8] == MAGIC && bytes[8..10] == VERSION.to_le_bytes() && bytes[16..32] == *token;
        let hello =
            Self { token: *token, connection: array(&bytes[32..]), streams: bytes[10], index: bytes[11] };
        let fits = usize::from(hello.streams) == streams && hello.index < hello.streams;
        (is_ours && fits).then_some(hello)
    }
}

/// Bytes as an array.
///
/// # Panics
/// If they are more or fewer.
fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.try_into().expect("a field has its size")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handle(address: &str) -> ListenHandle {
        ListenHandle { address: address.parse().unwrap(), streams: 64, token: [7; 16], pending: 1 << 40 }
    }

    #[test]
    fn handles_are_read_as_they_were_written() {
        for address in ["192.0.2.7:5", "[2001:db8::7]:65535"] {
            let handle = handle(address);
            assert_eq!(ListenHandle::from_bytes(&handle.to_bytes()), Ok(handle));
        }
    }

    #[test]
    fn handles_of_others_are_refused() {
        let changed = |at: usize, value: u8| {
            let mut bytes = handle("192.0.2.7:5").to_bytes();
            bytes[at] = value;
            ListenHandle::from_bytes(&bytes).unwrap_err()
        };
        assert_eq!(changed(0, 0), HandleProblem::Foreign);
        assert_eq!(changed(8, 9), HandleProblem::Version(9));
        for (at, value) in [(10, 0), (10, 65), (11, 5), (16, 1)] {
            assert_eq!(changed(at, value), HandleProblem::Foreign, "byte {at}");
        }
    }

    #[test]
    fn a_hello_is_for_one_receiver() {
        let hello = StreamHello { token: [7; 16], connection: [9; 16], streams: 4, index: 3 };
        let bytes = hello.to_bytes();
        assert_eq!(StreamHello::from_bytes(&bytes, &[7; 16], 4), Some(hello));
        assert_eq!(StreamHello::from_bytes(&bytes, &[8; 16], 4), None);
        assert_eq!(StreamHello::from_bytes(&bytes, &[7; 16], 5), None);
        for (at, value) in [(0, 0), (8, 9), (11, 4)] {
            let mut changed = bytes;
            changed[at] = value;
            assert_eq!(StreamHello::from_bytes(&changed, &[7; 16], 4), None, "byte {at}");
        }
    }
}

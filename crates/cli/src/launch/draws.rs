//! Secrets.

use rustix::rand::{GetRandomFlags, getrandom};
use std::io;

/// 64 hexadecimal digits, drawn by the kernel.
pub(super) fn random_token() -> io::Result<String> {
    let mut bytes = [0_u8; 32];
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_long_and_differ() {
        let [one, other] = [random_token().unwrap(), random_token().unwrap()];
        assert!(one.len() == 64 && one != other);
    }
}

//! The pages on which a process shows its state, over HTTP.

use super::{
    environment::Environment,
    listening::listen_address,
    settings::{self, Setting},
};
use crate::Result;
use std::fmt;

/// The values of `HERRINGBONE_ADMIN`, `HERRINGBONE_ADMIN_TOKEN` and `HERRINGBONE_METRICS_FILE`.
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct AdminSettings {
    /// Host and port of the first rank of a host, or of a server; port 0 is any free one.
    pub listen: Option<(String, u16)>,
    /// The token of clients that ask for more than whether the process lives.
    pub token: Option<String>,
    /// The directory into which metrics are written.
    pub files: Option<String>,
}

impl AdminSettings {
    /// The settings in an environment.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) for an invalid address.
    pub fn of(environment: &Environment) -> Result<Self> {
        let text = |setting: &Setting| Ok(setting.find(environment)?.map(|found| found.text));
        let listen = settings::ADMIN
            .find(environment)?
            .map(|found| listen_address(&found.text).ok_or_else(|| settings::ADMIN.refuse(&found)));
        Ok(Self {
            listen: listen.transpose()?,
            token: text(&settings::ADMIN_TOKEN)?,
            files: text(&settings::METRICS_FILE)?,
        })
    }

    /// With another address to listen at, `ADDR:PORT`; `None` if the text is none.
    pub fn at(self, text: &str) -> Option<Self> {
        Some(Self { listen: Some(listen_address(text)?), ..self })
    }
}

impl fmt::Debug for AdminSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { listen, files, .. } = self;
        f.debug_struct("AdminSettings").field("listen", listen).field("files", files).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_and_a_port() {
        let read = |text| {
            AdminSettings::of(&Environment::of([("HERRINGBONE_ADMIN", text)])).map(|admin| admin.listen)
        };
        for (text, host, port) in
            [("127.0.0.1:9464", "127.0.0.1", 9464), ("localhost:0", "localhost", 0), ("[::1]:1", "::1", 1)]
        {
            assert_eq!(read(text).unwrap(), Some((host.to_owned(), port)), "{text}");
        }
        for text in ["9464", ":9464", "host", "host:70000", "::1:9464", "[::1:9464", "host:"] {
            assert!(read(text).unwrap_err().to_string().contains("ADDR:PORT"), "{text}");
        }
        assert_eq!(read("").unwrap(), None);
        let secret =
            AdminSettings::of(&Environment::of([("HERRINGBONE_ADMIN_TOKEN", "tell-nobody")])).unwrap();
        assert!(!format!("{secret:?}").contains("tell-nobody"));
    }
}

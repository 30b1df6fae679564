//! Messages of a reducer to systemd over the socket in `NOTIFY_SOCKET`: that it listens, its status, that it drains, and
//! that its threads make progress. The protocol is that of sd_notify(3): a datagram of lines `NAME=value`.

use herringbone::server::ServerPulse;
use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};
use std::{env, io, thread};

/// How often the status is looked at, and the server's threads if the watchdog asks for it.
const LOOK: Duration = Duration::from_secs(1);

/// A service manager that listens.
#[derive(Debug)]
pub(super) struct Notifier {
    socket: UnixDatagram,
    manager: SocketAddr,
    /// Within which time it wants to hear of progress, again and again.
    watchdog: Option<Duration>,
}

impl Notifier {
    /// The manager that has started this process, if one wants to be told. A socket that cannot be used is as none.
    pub(super) fn of_process() -> Option<Self> {
        let path = env::var_os("NOTIFY_SOCKET").filter(|path| !path.is_empty())?;
        let limit = |name: &str| env::var(name).ok()?.parse::<u64>().ok();
        let is_mine = limit("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let watchdog =
            limit("WATCHDOG_USEC").filter(|limit| is_mine && *limit > 0).map(Duration::from_micros);
        Self::to(&path, watchdog).ok()
    }

    fn to(path: &OsStr, watchdog: Option<Duration>) -> io::Result<Self> {
        let manager = match path.as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(path)?,
        };
        let socket = UnixDatagram::unbound()?;
        // A manager that does not read must not hold the server up.
        socket.set_nonblocking(true)?;
        Ok(Self { socket, manager, watchdog })
    }

    pub(super) fn send(&self, lines: &str) {
        // Who does not listen any more is told nothing.
        let _unheard = self.socket.send_to_addr(lines.as_bytes(), &self.manager);
    }

    pub(super) fn try_clone(&self) -> io::Result<Self> {
        let (socket, manager) = (self.socket.try_clone()?, self.manager.clone());
        Ok(Self { socket, manager, watchdog: self.watchdog })
    }

    /// Tells on a thread how the server stands, and that its threads make progress, until the process ends.
    pub(super) fn follow(self, pulse: ServerPulse) -> io::Result<()> {
        let beat = thread::Builder::new().name("hb-watchdog".to_owned());
        if let Some(limit) = self.watchdog {
            let (notifier, pulse) = (self.try_clone()?, pulse.clone());
            beat.spawn(move || notifier.beat(limit / 2, &pulse))?;
        }
        thread::Builder::new().name("hb-notify".to_owned()).spawn(move || self.tell(&pulse)).map(drop)
    }

    /// Says so as often, as long as the server's threads come round. If one hangs, the manager hears nothing and acts.
    fn beat(&self, interval: Duration, pulse: &ServerPulse) {
        let mut before = None;
        loop {
            let beats = pulse.beats();
            if before.replace(beats) != Some(beats) {
                self.send("WATCHDOG=1");
            }
            thread::sleep(interval);
        }
    }

    /// Tells what `systemctl status` shows, when it has changed.
    fn tell(&self, pulse: &ServerPulse) {
        let mut shown = String::new();
        loop {
            let began = Instant::now();
            let stats = pulse.stats();
            let jobs = if stats.jobs == 1 { "job" } else { "jobs" };
            let status = format!("STATUS=serving {} {jobs}, {} since the start", stats.jobs, stats.served);
            if status != shown {
                self.send(&status);
                shown = status;
            }
            thread::sleep(LOOK.saturating_sub(began.elapsed()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manager_listens_at_a_path_or_an_abstract_name() {
        let path = env::temp_dir().join(format!("herringbone-notify-{}", std::process::id()));
        let name = format!("herringbone-notify-{}", std::process::id());
        let at_path = UnixDatagram::bind(&path).unwrap();
        let abstractly = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        for (listener, path) in
            [(at_path, path.as_os_str().to_owned()), (abstractly, format!("@{name}").into())]
        {
            Notifier::to(&path, None).unwrap().send("READY=1\nSTATUS=well");
            let mut room = [0; 64];
            let length = listener.recv(&mut room).unwrap();
            assert_eq!(&room[..length], b"READY=1\nSTATUS=well");
        }
        std::fs::remove_file(&path).unwrap();
        Notifier::to(path.as_os_str(), None).unwrap().send("nobody is there");
    }
}

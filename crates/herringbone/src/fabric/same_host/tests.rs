//! Both ends go on in one way.

use super::*;
use std::net::TcpListener;

/// What both ends come to, if the caller and the called one want to share or not.
fn meet(caller_shares: bool, called_shares: bool) -> [TcpLink; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let caller = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (called, _) = listener.accept().unwrap();
    let patience = Duration::from_secs(5);
    let called =
        std::thread::spawn(move || welcome_link(called, Keys::default(), patience, called_shares).unwrap());
    [call_link(caller, Keys::default(), patience, caller_shares).unwrap(), called.join().unwrap()]
}

fn is_shared(link: &TcpLink) -> bool {
    format!("{link:?}").contains("SharedPipe")
}

#[test]
fn processes_of_a_host_share_memory_unless_one_does_not_want_to() {
    assert!(meet(true, true).iter().all(is_shared));
    for (caller_shares, called_shares) in [(false, true), (true, false), (false, false)] {
        assert!(!meet(caller_shares, called_shares).iter().any(is_shared));
    }
}

#[test]
fn only_sockets_of_this_purpose_are_called() {
    assert!(matches!(pass(b"somebody-elses-socket-00"), Err(GreetError::Protocol(_))));
}

#[test]
fn who_passes_something_else_is_refused() {
    let (listener, name) = open().unwrap();
    let there = socket::connect_abstract(&name).unwrap();
    socket::pass_fds(&there, &[YES], &[]).unwrap();
    assert!(matches!(take(&listener), Err(GreetError::Protocol(_))));
    let there = socket::connect_abstract(&name).unwrap();
    let bell = Bell::new().unwrap();
    socket::pass_fds(&there, &[YES], &[bell.fd(), bell.fd(), bell.fd()]).unwrap();
    assert!(matches!(take(&listener), Err(GreetError::Unshared(_))));
}

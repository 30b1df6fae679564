//! The log, which is NCCL's: a plug-in gets a function for it when it is set up.

use crate::pointers::LogFunction;
use std::sync::{PoisonError, RwLock};

/// `NCCL_LOG_WARN`.
const WARN: i32 = 2;
/// `NCCL_LOG_INFO`.
const INFO: i32 = 3;
/// `NCCL_INIT | NCCL_NET`: what a line is about.
const NETWORK: u64 = 0x11;
/// `NCCL_ALL`.
const ALL: u64 = u64::MAX;
/// What each line begins with.
const PREFIX: &str = "NET/Herringbone : ";

static LOG: RwLock<LogFunction> = RwLock::new(LogFunction::NONE);

/// From now on lines go there.
pub(crate) fn set(log: LogFunction) {
    *LOG.write().unwrap_or_else(PoisonError::into_inner) = log;
}

fn line(level: i32, flags: u64, text: &str) {
    let log = *LOG.read().unwrap_or_else(PoisonError::into_inner);
    log.call(level, flags, &format!("{PREFIX}{text}"));
}

/// What helps to find out how a job is set up; NCCL shows it with `NCCL_DEBUG=INFO`.
pub(crate) fn info(text: &str) {
    line(INFO, NETWORK, text);
}

/// Why a call has failed; NCCL shows it with `NCCL_DEBUG=WARN`.
pub(crate) fn warn(text: &str) {
    line(WARN, ALL, text);
}

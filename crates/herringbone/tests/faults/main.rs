//! What goes wrong in practice: ranks that disagree, that are late, that never come, that die; strangers at every port.
//!
//! Each case says what every rank is told, and that the group works afterwards where that is promised. Ranks are threads
//! with real connections, or, where something is killed, processes: this test binary, started again.

mod deaths;
mod disagreement;
mod formation;
mod pairs;
mod process;
mod status;
mod stores;
mod strangers;
mod timeouts;
mod world;

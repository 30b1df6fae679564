//! Simulated ranks.

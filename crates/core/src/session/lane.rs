//! Lanes: the messages of one operation between two ranks, in order.

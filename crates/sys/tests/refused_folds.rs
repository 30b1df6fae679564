//! What no fold may be asked for ends in a panic that says so.

use herringbone_core::{
    element::{DType, ReduceOp},
    schedule::Form,
};
use herringbone_sys::{
    kernel::{Source, Target, fold},
    span::Span,
};

/// Two sources of eight f32 each, in one piece of memory, and a target.
fn refused(expect: impl FnOnce(Span<'_>, Span<'_>, Span<'_>)) {
    let mut memory = [0; 96];
    let all = Span::of(&mut memory);
    expect(all.slice(0..32), all.slice(32..64), all.slice(64..96));
}

fn plain(span: Span<'_>, merges: u8) -> Source<'_> {
    Source { span, form: Form::Plain, merges }
}

fn sum(into: Span<'_>, sources: &[Source<'_>]) {
    fold(DType::F32, ReduceOp::Sum, Target::of(into, Form::Plain), sources, Some(2));
}

#[test]
#[should_panic(expected = "leaves 2 partial results")]
fn refuses_to_leave_a_partial_result() {
    refused(|a, b, into| sum(into, &[plain(a, 0), plain(b, 0)]));
}

#[test]
#[should_panic(expected = "exceed its partial results")]
fn refuses_a_merge_of_nothing() {
    refused(|a, b, into| sum(into, &[plain(a, 0), plain(b, 2)]));
}

#[test]
#[should_panic(expected = "leaves 0 partial results")]
fn refuses_to_fold_nothing() {
    refused(|_, _, into| sum(into, &[]));
}

#[test]
#[should_panic(expected = "more than 33")]
fn refuses_a_stack_deeper_than_any_tree() {
    refused(|a, _, into| {
        let merges = |index| if index == 39 { 39 } else { 0 };
        sum(into, &(0..40).map(|index| plain(a, merges(index))).collect::<Vec<_>>());
    });
}

#[test]
#[should_panic(expected = "a source of 28 bytes, not 32")]
fn refuses_a_short_source() {
    refused(|a, b, into| sum(into, &[plain(a, 0), plain(b.slice(0..28), 1)]));
}

#[test]
#[should_panic(expected = "no whole number of items")]
fn refuses_half_an_element() {
    refused(|a, _, into| sum(into.slice(0..30), &[plain(a.slice(0..30), 0)]));
}

#[test]
#[should_panic(expected = "overlaps a source")]
fn refuses_a_target_that_is_half_a_source() {
    let mut memory = [0; 40];
    let all = Span::of(&mut memory);
    sum(all.slice(8..40), &[plain(all.slice(0..32), 0)]);
}

#[test]
#[should_panic(expected = "elements if it is the last")]
fn refuses_an_unfinished_element() {
    refused(|a, _, into| {
        fold(DType::F32, ReduceOp::Sum, Target::of(into, Form::Plain), &[plain(a, 0)], None)
    });
}

#[test]
#[should_panic(expected = "no contributors")]
fn refuses_an_average_of_nobody() {
    refused(|a, _, into| {
        fold(DType::I32, ReduceOp::Average, Target::of(into, Form::Plain), &[plain(a, 0)], Some(0))
    });
}

#[test]
#[should_panic(expected = "reading only")]
fn refuses_to_write_what_was_lent_for_reading() {
    refused(|a, _, _| sum(Span::of_shared(&[0; 32]), &[plain(a, 0)]));
}

/// Sums `a` into `b` and into `copies`.
fn sum_to(b: Span<'_>, copies: &[Span<'_>], a: Span<'_>) {
    let into = Target { copies, ..Target::of(b, Form::Plain) };
    fold(DType::F32, ReduceOp::Sum, into, &[plain(a, 0)], Some(1));
}

#[test]
#[should_panic(expected = "two places of the target overlap")]
fn refuses_places_that_overlap() {
    refused(|a, b, into| sum_to(b, &[into, into], a));
}

#[test]
#[should_panic(expected = "two places of the target overlap")]
fn refuses_a_copy_in_the_first_place() {
    refused(|a, b, _| sum_to(b, &[b], a));
}

#[test]
#[should_panic(expected = "a copy of 28 bytes, not 32")]
fn refuses_a_short_copy() {
    refused(|a, b, into| sum_to(b, &[into.slice(0..28)], a));
}

#[test]
#[should_panic(expected = "overlaps a source")]
fn refuses_a_copy_that_is_half_a_source() {
    let mut memory = [0; 72];
    let all = Span::of(&mut memory);
    sum_to(all.slice(40..72), &[all.slice(8..40)], all.slice(0..32));
}

#[test]
#[should_panic(expected = "reading only")]
fn refuses_a_copy_into_what_was_lent_for_reading() {
    refused(|a, b, _| sum_to(b, &[Span::of_shared(&[0; 32])], a));
}

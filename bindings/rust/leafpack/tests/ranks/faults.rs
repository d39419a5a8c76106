//! What goes wrong between ranks: each gets its error, nobody waits for nothing, and the group goes on.

use super::*;

#[test]
fn ranks_that_disagree_get_one_error_each_and_go_on() {
    let group = group();
    let (rank, size) = (group.rank(), group.size());
    if size == 1 {
        return;
    }
    let mut tree = tree_of(rank);
    if rank == size - 1 {
        tree.set("a", Tensor::from_vec(vec![0i32; 3], &[3]).unwrap()).unwrap();
    }
    let error = all_reduce(&mut tree, &group, &AllReduceOptions::default()).unwrap_err();
    assert_eq!(error.code(), ErrorCode::FailedPrecondition);
    assert_eq!(error.kind(), ErrorKind::LayoutMismatch);
    assert_eq!(error.path(), "a");
    assert!(error.ranks().contains(&(size - 1)), "{error:?}");
    assert!(error.tree_unchanged());

    // What one rank refuses.
    let mut tree = tree_of(rank);
    if rank == 0 {
        tree.set("a", Tensor::undefined().unwrap()).unwrap();
    }
    let options = AllReduceOptions { op: ReduceOp::Band, ..Default::default() };
    let error = all_reduce(&mut tree, &group, &options).unwrap_err();
    assert!(!error.message().is_empty());

    let mut tree = tree_of(rank);
    all_reduce(&mut tree, &group, &AllReduceOptions::default()).unwrap();
    check(&tree, |leaf, element| sum(size, leaf, element));
}

#[test]
fn a_call_that_a_rank_misses_ends_by_its_deadline_or_by_the_interrupt() {
    let group = group();
    if group.size() == 1 {
        return;
    }
    let meeting = self::group();
    barrier(&group, &CallOptions::default()).unwrap();
    if group.rank() == 0 {
        let timeout = Some(std::time::Duration::from_millis(200));
        let error = barrier(&group, &CallOptions { timeout, ..Default::default() }).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Deadline, "{error}");
        assert!(error.ranks().contains(&1), "{error:?}");
        let error = barrier(&group, &CallOptions { interrupt: Some(&|| true), ..Default::default() }).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Interrupted, "{error}");
    }
    // Until then the others stay in the group.
    barrier(&meeting, &CallOptions::default()).unwrap();
}

/// What a closure panicked with.
#[track_caller]
fn panic_of<R>(call: impl FnOnce() -> R) -> String {
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(call()))).unwrap_err();
    panic.downcast_ref::<&str>().unwrap().to_string()
}

#[test]
fn a_filter_that_panics_refuses_the_call_on_all_ranks() {
    let group = group();
    let (rank, size) = (group.rank(), group.size());
    let mut trees: Vec<_> = (0..size).map(|_| tree_of(rank)).collect();
    let panics = |path: &str| if rank == size - 1 && path == "b[0]" { panic!("a filter") } else { true };
    let panics_by_key = |key: &NestedKey| if *key == key!["b", 0] { panics("b[0]") } else { true };
    let before = live_handles();
    for leaves in [LeafFilter::Chosen(&panics), LeafFilter::ChosenByKey(&panics_by_key)] {
        // Of one rank too the op changes what takes part.
        let options = AllReduceOptions { leaves, ..AllReduceOptions::with_op(ReduceOp::PremulSum(3.0)) };
        for call in 0..6 {
            let mut run = || match call {
                0 => all_reduce(&mut trees[0], &group, &options),
                1 => reduce(&mut trees[0], size - 1, &group, &options),
                2 => reduce_scatter(&mut trees, &group, &options),
                3 => all_reduce_async(&mut trees[0], &group, &options)?.wait(),
                4 => reduce_async(&mut trees[0], size - 1, &group, &options)?.wait(),
                _ => reduce_scatter_async(&mut trees, &group, &options)?.wait(),
            };
            if rank == size - 1 {
                assert_eq!(panic_of(run), "a filter", "call {call}");
            } else {
                let error = run().unwrap_err();
                assert_eq!((error.kind(), error.ranks()), (ErrorKind::PeerRefused, &[size - 1][..]), "{error}");
                let reason = format!("on rank {}: the filter of leaves panicked: a filter", size - 1);
                assert!(error.tree_unchanged() && error.message().contains(&reason), "{error}");
            }
            assert_eq!(live_handles(), before, "call {call}");
            // The group is in step, and no call of before is left to write.
            barrier(&group, &CallOptions::default()).unwrap();
            for tree in &trees {
                check(tree, |leaf, element| value(rank, leaf, element));
            }
        }
    }
}

#[test]
fn an_interrupt_that_panics_leaves_nothing_behind() {
    let world = group();
    let (rank, size) = (world.rank(), world.size());
    let split = || world.split(Some(0), rank, &GroupOptions::default()).unwrap().unwrap();
    let (group, other) = (split(), split());
    let tree = tree_of(rank);
    if rank == 0 && size > 1 {
        let before = live_handles();
        let panics = || -> bool { panic!("an interrupt") };
        let options = CallOptions { interrupt: Some(&panics), ..Default::default() };
        assert_eq!(panic_of(|| all_gather(&tree, &group, &options)), "an interrupt");
        let transfer = TransferOptions { interrupt: Some(&panics), ..Default::default() };
        assert_eq!(panic_of(|| recv(Some(1), &group, &transfer)), "an interrupt");
        let making = GroupOptions { interrupt: Some(&panics), ..Default::default() };
        assert_eq!(panic_of(|| other.split(Some(0), 0, &making)), "an interrupt");
        assert_eq!(live_handles(), before);
    }
    barrier(&world, &CallOptions::default()).unwrap(); // until then the others are silent
}

#[test]
fn a_timeout_of_nothing_is_refused_on_all_ranks() {
    let group = group();
    let (rank, size) = (group.rank(), group.size());
    let timeout = if rank == size - 1 { Some(Duration::ZERO) } else { None };
    let mut tree = tree_of(rank);
    let call = CallOptions { timeout, ..Default::default() };
    let making = GroupOptions { timeout, ..Default::default() };
    let errors = [
        all_reduce(&mut tree, &group, &AllReduceOptions { call, ..Default::default() }).unwrap_err(),
        barrier(&group, &call).unwrap_err(),
        group.split(Some(0), 0, &making).unwrap_err(),
    ];
    for error in errors {
        if rank == size - 1 {
            assert_eq!(error.code(), ErrorCode::InvalidArgument, "{error}");
        } else {
            assert_eq!((error.kind(), error.ranks()), (ErrorKind::PeerRefused, &[size - 1][..]), "{error}");
        }
    }
    barrier(&group, &CallOptions::default()).unwrap();
}

/// Of the last rank the call is refused for `reason`; the others hear of it by name. The group is usable.
#[track_caller]
fn is_refused<R>(group: &Group, called: Result<R>, reason: &str) {
    let culprit = group.size() - 1;
    let error = called.map(|_| reason).unwrap_err();
    let text = format!("on rank {culprit}: {reason}");
    assert!(error.message().contains(&text), "{error}: not {text}");
    if group.rank() == culprit {
        assert_eq!((error.code(), error.kind()), (ErrorCode::InvalidArgument, ErrorKind::Other), "{error}");
    } else {
        assert_eq!((error.kind(), error.ranks()), (ErrorKind::PeerRefused, &[culprit][..]), "{error}");
    }
    barrier(group, &CallOptions::default()).unwrap();
}

#[test]
fn what_the_crate_refuses_is_refused_on_all_ranks() {
    let group = group();
    let (rank, size) = (group.rank(), group.size());
    let wrong = rank == size - 1;
    let call = CallOptions { name: Some(if wrong { "a\0b" } else { "ab" }), ..Default::default() };
    let reason = "\"a\\0b\" holds a zero byte";
    let mut tree = tree_of(rank);
    let mut trees: Vec<_> = (0..size).map(|_| tree_of(rank)).collect();
    let reduce_options = AllReduceOptions { call, ..Default::default() };
    is_refused(&group, barrier(&group, &call), reason);
    is_refused(&group, all_reduce(&mut tree, &group, &reduce_options), reason);
    let work = all_reduce_async(&mut tree, &group, &reduce_options);
    is_refused(&group, work.and_then(TreeWork::wait), reason);
    is_refused(&group, reduce_scatter(&mut trees, &group, &reduce_options), reason);
    is_refused(&group, all_gather(&tree, &group, &call), reason);
    is_refused(&group, all_to_all(&trees, &group, &call), reason);
    is_refused(&group, gather(&tree, 0, &group, &call), reason);
    is_refused(&group, all_gather_bytes(b"x", &group, &call), reason);
    let work = all_gather_bytes_async(b"x", &group, &call);
    is_refused(&group, work.and_then(TreeWork::wait), reason);
    check(&tree, |leaf, element| value(rank, leaf, element));

    let defaults = GroupOptions::default();
    let color = if wrong { i32::MIN } else { 0 };
    is_refused(&group, group.split(Some(color), 0, &defaults), "the color -2147483648 stands for none");
    let making = GroupOptions { backend: wrong.then_some("gl\0oo"), ..defaults };
    is_refused(&group, group.split(Some(0), 0, &making), "\"gl\\0oo\" holds a zero byte");
}

#[test]
fn the_error_of_a_read_that_nobody_waited_for_is_kept_for_the_next_write() {
    let group = group();
    let (rank, size) = (group.rank(), group.size());
    let mut tree = tree_of(rank);
    let name = if rank == size - 1 { "one" } else { "other" };
    let failing = CallOptions { name: Some(name), ..Default::default() };
    let work = all_gather_async(&tree, &group, &failing).unwrap();
    while !work.wait_for(Duration::from_secs(1)) {}
    drop(work);
    all_gather_async(&tree, &group, &CallOptions::default()).unwrap().wait().unwrap();
    if size > 1 {
        assert_eq!(tree.slice_mut::<f64>("a").unwrap_err().kind(), ErrorKind::LayoutMismatch);
    }
    tree.slice_mut::<f64>("a").unwrap(); // told once
    barrier(&group, &CallOptions::default()).unwrap();
}

#[test]
fn the_error_of_a_call_that_nobody_waited_for_refuses_the_next_on_all_ranks() {
    let group = group();
    let other = self::group();
    let (rank, size) = (group.rank(), group.size());
    let mut tree = tree_of(rank);
    let mut next = tree_of(rank);
    if size == 1 {
        return;
    }
    // On the last rank the next call is on the tree that failed, on the others on another one.
    let wrong = rank == size - 1;
    let options = AllReduceOptions::default();
    if wrong {
        tree.set("a", Tensor::from_vec(vec![0i32; 3], &[3]).unwrap()).unwrap();
    }
    drop(all_reduce_async(&mut tree, &other, &options).unwrap());
    let called = all_reduce(if wrong { &mut tree } else { &mut next }, &group, &options);
    let error = called.unwrap_err();
    if wrong {
        assert_eq!((error.kind(), error.path()), (ErrorKind::LayoutMismatch, "a"), "{error}");
    } else {
        assert_eq!((error.kind(), error.ranks()), (ErrorKind::PeerRefused, &[size - 1][..]), "{error}");
    }
    barrier(&group, &CallOptions::default()).unwrap();
}

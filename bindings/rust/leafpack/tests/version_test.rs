//! The crate and the library that it is linked with are of one version.

#[test]
fn the_loaded_library_has_the_interface_that_the_crate_was_written_for() {
    assert_eq!(unsafe { leafpack_sys::leafpack_abi_version() }, leafpack_sys::LEAFPACK_ABI_VERSION);
    let numbers = [
        leafpack_sys::LEAFPACK_VERSION_MAJOR,
        leafpack_sys::LEAFPACK_VERSION_MINOR,
        leafpack_sys::LEAFPACK_VERSION_PATCH,
    ];
    assert_eq!(leafpack::abi_version(), leafpack::ABI_VERSION);
    assert_eq!(leafpack::version_number(), numbers[0] * 10000 + numbers[1] * 100 + numbers[2]);
    assert_eq!(leafpack::version(), numbers.map(|number| number.to_string()).join("."));
    let torch = leafpack::torch_version();
    assert!(torch.split('.').count() == 3 && torch.starts_with(|first: char| first.is_ascii_digit()), "{torch}");
}

#[test]
fn messages_go_where_they_are_wanted() {
    let (sender, received) = std::sync::mpsc::channel();
    let sender = std::sync::Mutex::new(sender);
    leafpack::set_log(Some(Box::new(move |message| {
        let place = format!("{}:{}", message.file, message.line);
        sender.lock().unwrap().send((message.severity, place, message.text.to_string())).unwrap();
    })))
    .unwrap();
    // What is freed twice is told.
    unsafe { leafpack_sys::leafpack_tree_free(0x40 as *mut _) };
    leafpack::set_log(None).unwrap();
    let (severity, place, text) = received.recv().unwrap();
    assert_eq!(severity, leafpack::Severity::Warning);
    assert!(place.contains("guard.cc:"), "{place}");
    assert!(text.contains("leafpack_tree"), "{text}");
    assert!(received.recv().is_err()); // the closure is gone
}

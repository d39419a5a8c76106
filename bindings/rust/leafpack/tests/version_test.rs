//! The crate and the library that it is linked with are of one version.

#[test]
fn the_loaded_library_has_the_interface_that_the_crate_was_written_for() {
    assert_eq!(unsafe { leafpack_sys::leafpack_abi_version() }, leafpack_sys::LEAFPACK_ABI_VERSION);
    let numbers = [
        leafpack_sys::LEAFPACK_VERSION_MAJOR,
        leafpack_sys::LEAFPACK_VERSION_MINOR,
        leafpack_sys::LEAFPACK_VERSION_PATCH,
    ];
    assert_eq!(leafpack::version(), numbers.map(|number| number.to_string()).join("."));
    let torch = leafpack::torch_version();
    assert!(torch.split('.').count() == 3 && torch.starts_with(|first: char| first.is_ascii_digit()), "{torch}");
}

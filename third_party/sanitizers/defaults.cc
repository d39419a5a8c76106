// Options and suppressions that the sanitizers' run-times ask for when a program starts.
//
// libtorch comes as a binary without instrumentation. So memory errors inside it are not seen, and
// what it does between threads by atomics alone (reference counts, its thread pool, OpenMP) cannot
// be told from a race. Only that is suppressed; everything that our own code does is reported.

extern "C" {

const char* __asan_default_options() {
  return "abort_on_error=0:detect_stack_use_after_return=1:strict_string_checks=1:"
         "check_initialization_order=1:detect_leaks=1:"
         // An allocation that no machine can serve throws, as without the sanitizer.
         "allocator_may_return_null=1";
}

// Registries and thread pools that libtorch makes once and keeps; and what the stack of the
// understudy's thread held, in a forked child that has no such thread.
const char* __lsan_default_suppressions() {
  return "leak:libtorch_cpu.so\n"
         "leak:libc10.so\n"
         "leak:libgomp.so\n"
         "leak:leafpack::Understudy::Impl::Run\n";
}

const char* __tsan_default_options() {
  return "halt_on_error=0:second_deadlock_stack=1:history_size=4";
}

const char* __tsan_default_suppressions() {
  return "race:libtorch_cpu.so\n"
         "race:libc10.so\n"
         "race:libgomp.so\n"
         // Inline in c10's headers: the last reference is often dropped inside libtorch, whose
         // half of the count's ordering is not seen.
         "race:c10::intrusive_ptr\n"
         "race:c10::detail::intrusive_target\n"
         "mutex:libtorch_cpu.so\n";
}

const char* __ubsan_default_options() { return "print_stacktrace=1:halt_on_error=1"; }

}  // extern "C"

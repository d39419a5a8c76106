// What a C++ toolchain must get right here, in one small program that depends on nothing: threads, waits with a
// deadline, exceptions, the functions of libm whose versions are chosen, files.
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>

namespace {

void Check(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::exit(1);
}

// Not known when this is compiled.
double Opaque(double value) {
  volatile double hidden = value;
  return hidden;
}

void Threads() {
  std::mutex mutex;
  std::condition_variable changed;
  bool ready = false;
  std::thread thread([&] {
    const std::lock_guard<std::mutex> lock(mutex);
    ready = true;
    changed.notify_one();
  });
  {
    std::unique_lock<std::mutex> lock(mutex);
    Check(changed.wait_for(lock, std::chrono::seconds(60), [&] { return ready; }), "a thread is heard");
    Check(!changed.wait_for(lock, std::chrono::milliseconds(1), [] { return false; }), "a wait ends");
  }
  thread.join();
}

void Exceptions() {
  bool caught = false;
  try {
    throw std::runtime_error("thrown");
  } catch (const std::exception& error) {
    caught = error.what() == std::string("thrown");
  }
  Check(caught, "an exception is caught by its base");
}

void Numbers() {
  Check(std::exp(Opaque(0)) == 1 && std::exp2(Opaque(3)) == 8, "exp, exp2");
  Check(std::log(Opaque(1)) == 0 && std::log2(Opaque(8)) == 3, "log, log2");
  Check(std::pow(Opaque(2), Opaque(10)) == 1024, "pow");
}

void Files() {
  const char* folder = std::getenv("TEST_TMPDIR");
  const std::filesystem::path path = std::filesystem::path(folder == nullptr ? "." : folder) / "file";
  std::ofstream(path) << "text";
  Check(std::filesystem::file_size(path) == 4, "a file has the size that was written");
  std::filesystem::remove(path);
}

}  // namespace

int main() {
  Threads();
  Exceptions();
  Numbers();
  Files();
  return 0;
}

#include "bindings/python/errors.h"

#include <string>

#include "absl/strings/str_cat.h"

#include "bindings/python/status_exception.h"

namespace leafpack::python {
namespace {

// Text of a peer may hold bytes that are no UTF-8.
py::object Text(const std::string& text) {
  PyObject* decoded =
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace");
  if (decoded == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(decoded);
}

[[noreturn]] void RaiseBy(const char* function, const absl::Status& status) {
  const ErrorDetails details = GetErrorDetails(status);
  py::list ranks;
  for (GlobalRank rank : details.ranks) ranks.append(rank.value());
  py::list paths_done;
  for (const std::string& path : details.paths_done) paths_done.append(Text(path));
  py::object exception =
      py::module_::import("leafpack._errors")
          .attr(function)(static_cast<int>(details.kind), static_cast<int>(status.code()),
                               Text(std::string(status.message())), Text(details.path), ranks,
                               paths_done, details.tree_unchanged, details.outcome_unknown);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
  throw StatusException(status);
}

}  // namespace

void Raise(const absl::Status& status) { RaiseBy("from_status", status); }

void RaiseFileError(const absl::Status& status) { RaiseBy("from_file_status", status); }

absl::Status StatusFromException(const py::error_already_set& error) {
  std::string name = "an exception";
  std::string text;
  try {
    name = error.type().attr("__name__").cast<std::string>();
    text = py::str(error.value()).cast<std::string>();
  } catch (const py::error_already_set&) {
    // A class whose __str__ raises: its name must do.
  }
  if (text.size() > 1024) text.resize(1024);
  return absl::FailedPreconditionError(absl::StrCat(name, text.empty() ? "" : ": ", text));
}

}  // namespace leafpack::python

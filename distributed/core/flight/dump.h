// Dumps of the flight recorder: one JSON document for a process, with the last calls of all its groups.
// docs/flight.md has the format; `leafpack flight FILES...` merges the dumps of several ranks.
#ifndef LEAFPACK_DISTRIBUTED_CORE_FLIGHT_DUMP_H_
#define LEAFPACK_DISTRIBUTED_CORE_FLIGHT_DUMP_H_

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "distributed/core/flight/recorder.h"

namespace leafpack {

// The dump as text. `reason`: why it was made. Thread-safe, like all functions here.
std::string FlightRecord(std::string_view reason = "request");

// Writes the dump to `folder`/flight-rank<RANK>-<pid>.json, in one step: a reader sees the old file or
// the new one. The folder is made if its parent exists. Returns the path; NotFound, PermissionDenied
// or Internal with the path otherwise.
absl::StatusOr<std::string> DumpFlight(const std::string& folder,
                                       std::string_view reason = "request");

// From now on each call that fails in this process also writes the dump there, before its error is
// returned (of several within 100 ms the first; the rest when a group is shut down). "" turns it off.
// At first: the environment's LEAFPACK_FLIGHT_DIR, or off.
void DumpFlightOnError(std::string folder);

// From now on signal `signo` writes the dump to `folder`, from a thread of its own. The handler itself
// only wakes that thread, then calls the handler that was there before; a default action does not
// happen any more. One signal for a process: a second call moves it. InvalidArgument for signals that
// cannot be caught, or that tell of a crash. The environment's LEAFPACK_FLIGHT_SIGNAL (a number, or a
// name such as USR2) does it when the first group is made, with LEAFPACK_FLIGHT_DIR or else ".".
absl::Status DumpFlightOnSignal(int signo, std::string folder);

// ---- for engines

// A recorder that dumps know; sets up what the environment asks for.
std::shared_ptr<FlightRecorder> NewFlightRecorder(FlightRecorder::Info info);
// A call failed: writes the dump where DumpFlightOnError asks for it. Must not be called with a lock.
void NoteFlightError(const absl::Status& status);
// Writes what NoteFlightError has put off.
void FlushFlightErrors();

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_CORE_FLIGHT_DUMP_H_

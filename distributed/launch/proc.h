// What /proc tells about a process: where its threads stand, who else is in its process group.
#ifndef LEAFPACK_DISTRIBUTED_LAUNCH_PROC_H_
#define LEAFPACK_DISTRIBUTED_LAUNCH_PROC_H_

#include <sys/types.h>

#include <string>
#include <vector>

namespace leafpack {

// One line for each thread of `pid` (at most 32): its name, state, the system call and the kernel
// function it waits in, and its kernel stack where we may read it. Lines have no newline. Empty when
// there is no such process.
std::vector<std::string> DescribeThreads(pid_t pid);

// Processes of the group `pgid` that are not zombies, lowest first.
std::vector<pid_t> LivingMembers(pid_t pgid);

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_LAUNCH_PROC_H_

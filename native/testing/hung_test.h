// What a test that does not end is doing: the stacks of every thread of its processes.
#pragma once

#include <sys/types.h>

namespace rabit::testing {

// In a process whose tests another one watches, before its first thread: a thread that is asked
// writes its stack to the standard output.
void AnswerWithStacks();

// Asks every thread of `process` and of the processes that it started, then kills those processes.
void ShowAndKill(pid_t process);

}  // namespace rabit::testing

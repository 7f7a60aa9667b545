#include "testing/hung_test.h"

#include <execinfo.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

namespace rabit::testing {
namespace {

namespace fs = std::filesystem;

constexpr int kAsk = SIGUSR2;
constexpr int kFramesMax = 48;

void WriteStack(int) {
  const int keep = errno;
  void* frames[kFramesMax];
  ::backtrace_symbols_fd(frames, ::backtrace(frames, kFramesMax), STDOUT_FILENO);
  errno = keep;
}

std::vector<pid_t> ThreadsOf(pid_t process) {
  std::vector<pid_t> threads;
  std::error_code error;  // the process may end while it is read
  for (fs::directory_iterator each("/proc/" + std::to_string(process) + "/task", error), end;
       !error && each != end; each.increment(error)) {
    threads.push_back(static_cast<pid_t>(std::stol(each->path().filename().string())));
  }
  return threads;
}

// Parents first.
void AddChildren(pid_t process, std::vector<pid_t>& found) {
  found.push_back(process);
  for (const pid_t thread : ThreadsOf(process)) {
    std::ifstream children("/proc/" + std::to_string(process) + "/task/" + std::to_string(thread) +
                           "/children");
    for (pid_t child = 0; children >> child;) AddChildren(child, found);
  }
}

}  // namespace

void AnswerWithStacks() {
  void* frame = nullptr;
  ::backtrace(&frame, 1);  // loads what it needs, which a signal handler may not
  struct sigaction action = {};
  action.sa_handler = WriteStack;
  action.sa_flags = SA_RESTART;
  ::sigaction(kAsk, &action, nullptr);
}

void ShowAndKill(pid_t process) {
  std::vector<pid_t> family;
  AddChildren(process, family);
  for (const pid_t each : family) {
    for (const pid_t thread : ThreadsOf(each)) {
      std::printf("process %d, thread %d:\n", each, thread);
      std::fflush(stdout);
      ::syscall(SYS_tgkill, each, thread, kAsk);
      std::this_thread::sleep_for(std::chrono::milliseconds(50));  // one stack after the other
    }
  }
  for (const pid_t each : family) ::kill(each, SIGKILL);
}

}  // namespace rabit::testing

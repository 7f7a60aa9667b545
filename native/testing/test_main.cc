// main() of the native tests.
// Usage: rabit_tests [--filter=TEXT[:TEXT…]] [--list] [--repeat=N] [--slowest=N] [--jobs=N] [--pin]
// A filter matches "Suite.name" by substring; "-TEXT" excludes.  Jobs are processes that share the
// tests: each takes the next one when it has ended its last.  --pin keeps each on one core, in
// turn.  A test that does not end is shown and has failed.
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "testing/hung_test.h"
#include "testing/test.h"

namespace rabit::testing {
namespace {

struct Case {
  std::string suite;
  std::string name;
  std::function<void()> body;
  std::string full_name() const { return suite + "." + name; }
};

std::vector<Case>& Cases() {
  static std::vector<Case> cases;
  return cases;
}

std::mutex g_mutex;
int g_failures_of_current = 0;
std::string g_texts_of_current;
std::string g_skip_reason;
thread_local std::string t_failure;

bool Matches(const std::string& name, const std::vector<std::string>& filters) {
  bool is_included = true;
  bool has_positive = false;
  bool matches_positive = false;
  for (const std::string& filter : filters) {
    if (filter.starts_with("-")) {
      if (name.find(filter.substr(1)) != std::string::npos) is_included = false;
    } else {
      has_positive = true;
      if (name.find(filter) != std::string::npos) matches_positive = true;
    }
  }
  return is_included && (!has_positive || matches_positive);
}

std::vector<std::string> Split(const std::string& text) {
  std::vector<std::string> parts;
  size_t start = 0;
  while (start <= text.size()) {
    size_t end = text.find(':', start);
    if (end == std::string::npos) end = text.size();
    if (end > start) parts.push_back(text.substr(start, end - start));
    start = end + 1;
  }
  return parts;
}

struct Duration {
  double ms;
  std::string test;
};
std::vector<Duration> g_durations;  // main thread only

void PrintSlowest(size_t most) {
  std::stable_sort(g_durations.begin(), g_durations.end(),
                   [](const Duration& a, const Duration& b) { return a.ms > b.ms; });
  double total_ms = 0;
  for (const Duration& each : g_durations) total_ms += each.ms;
  for (size_t i = 0; i < std::min(most, g_durations.size()); ++i) {
    std::printf("slowest %8.0f ms  %s\n", g_durations[i].ms, g_durations[i].test.c_str());
  }
  if (most > 0) std::printf("slowest %8.0f ms  all together\n", total_ms);
}

// Returns whether the test passed (a skipped one does).
bool RunCase(const Case& test) {
  {
    std::lock_guard lock(g_mutex);
    g_failures_of_current = 0;
    g_texts_of_current.clear();
    g_skip_reason.clear();
  }
  const auto start = std::chrono::steady_clock::now();
  test.body();
  const double ms =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  g_durations.push_back({ms, test.full_name()});
  std::lock_guard lock(g_mutex);
  const char* word = g_failures_of_current > 0 ? "FAILED"
                     : g_skip_reason.empty()   ? "ok"
                                               : "skipped";
  std::printf("%-7s %s (%.0f ms)%s%s\n", word, test.full_name().c_str(), ms,
              g_skip_reason.empty() ? "" : ": ", g_skip_reason.c_str());
  std::fflush(stdout);
  return g_failures_of_current == 0;
}

constexpr int kJobsMax = 64;

// What the jobs have of each other, in memory that all of them share.
struct Share {
  std::atomic<size_t> next{0};
  std::atomic<int> passed{0}, failed{0}, skipped{0};
  std::atomic<size_t> current[kJobsMax] = {};
};

// Takes tests until there are no more.
void RunShare(const std::vector<const Case*>& chosen, int job, size_t slowest, Share& share) {
  std::vector<std::string> failed;
  for (size_t i = 0; (i = share.next.fetch_add(1)) < chosen.size();) {
    share.current[job].store(i);
    if (!RunCase(*chosen[i])) {
      std::lock_guard lock(g_mutex);
      failed.push_back(chosen[i]->full_name() + "\n" + g_texts_of_current);
      ++share.failed;
    } else if (g_skip_reason.empty()) {
      ++share.passed;
    } else {
      ++share.skipped;
    }
  }
  PrintSlowest(slowest);
  // Once more at the end, where who reads the last lines finds it.
  for (const std::string& each : failed) std::printf("FAILED  %s", each.c_str());
}

// A job that dies has failed in the test that it was in.
void CountEnd(int how, const Case& current, Share& share) {
  if (WIFEXITED(how) && WEXITSTATUS(how) == 0) return;
  ++share.failed;
  std::printf("FAILED  %s: its process ended with %s %d\n", current.full_name().c_str(),
              WIFSIGNALED(how) ? "signal" : "status",
              WIFSIGNALED(how) ? WTERMSIG(how) : WEXITSTATUS(how));
}

// The slowest test takes a tenth of it, under a sanitizer beside builds.
constexpr auto kLimit = std::chrono::minutes(8);

// Waits for a job, and ends it when a test of it has not ended within the limit.
void WaitForJob(pid_t pid, const std::vector<const Case*>& chosen,
                const std::atomic<size_t>& current, Share& share) {
  size_t test = current.load();
  auto since = std::chrono::steady_clock::now();
  for (;;) {
    int how = 0;
    const pid_t ended = ::waitpid(pid, &how, WNOHANG);
    if (ended == pid) return CountEnd(how, *chosen[current.load()], share);
    if (ended < 0 && errno != EINTR) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const auto now = std::chrono::steady_clock::now();
    if (current.load() != test) {
      test = current.load();
      since = now;
    } else if (now - since > kLimit) {
      std::printf("%s has not ended after %lld minutes:\n", chosen[test]->full_name().c_str(),
                  static_cast<long long>(kLimit.count()));
      ShowAndKill(pid);
      since = now;
    }
  }
}

// Keeps the calling process on the job's core, of those that it may use.  Under ThreadSanitizer
// cores that tell each other which memory is gone take a fifth of the processor time; it finds
// races by what is ordered, not by what happens at the same moment.
bool KeepOnOneCore(int job) {
  cpu_set_t allowed, own;
  if (::sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return false;
  int skip = job % CPU_COUNT(&allowed);
  int core = 0;
  while (!CPU_ISSET(core, &allowed) || skip-- > 0) ++core;
  CPU_ZERO(&own);
  CPU_SET(core, &own);
  return ::sched_setaffinity(0, sizeof(own), &own) == 0;
}

// Nullptr: no memory to share.
Share* RunJobs(const std::vector<const Case*>& chosen, int jobs, size_t slowest, bool is_pinned) {
  void* const memory =
      ::mmap(nullptr, sizeof(Share), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    std::perror("memory for the jobs");
    return nullptr;
  }
  Share* const share = new (memory) Share();
  std::vector<pid_t> started;
  for (int job = 0; job < jobs; ++job) {
    const pid_t pid = ::fork();
    if (pid < 0) std::perror("fork");
    if (pid < 0) break;
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      std::setvbuf(stdout, nullptr, _IOLBF, 1 << 16);
      AnswerWithStacks();
      if (is_pinned && !KeepOnOneCore(job)) std::perror("a core for the job");
      RunShare(chosen, job, slowest, *share);
      std::exit(0);  // sanitizers report at the end
    }
    started.push_back(pid);
  }
  std::vector<std::thread> waiting;
  for (size_t job = 0; job < started.size(); ++job) {
    waiting.emplace_back([&, job] { WaitForJob(started[job], chosen, share->current[job], *share); });
  }
  for (std::thread& each : waiting) each.join();
  // What is left where no job could be started, or all have died, has not been tested.
  const size_t begun = std::min(share->next.load(), chosen.size());
  share->failed += static_cast<int>(chosen.size() - begun);
  return share;
}

}  // namespace

int Register(std::string suite, std::string name, std::function<void()> body) {
  Cases().push_back({std::move(suite), std::move(name), std::move(body)});
  return 0;
}

void ReportFailure(const char* file, int line, const std::string& text) {
  std::lock_guard lock(g_mutex);
  if (++g_failures_of_current > 20) return;
  const std::string whole = std::string(file) + ":" + std::to_string(line) + ": " + text + "\n";
  std::printf("%s", whole.c_str());
  std::fflush(stdout);  // what hangs may take long to end
  g_texts_of_current += whole;
}

std::string Streamed(void (*write)(std::ostream& out, const void* value), const void* value) {
  std::ostringstream out;
  write(out, value);
  return out.str();
}

void KeepFailure(std::string text) { t_failure = std::move(text); }

bool CheckOk(const char* text, const Status& status) {
  if (status.ok()) return true;
  KeepFailure(text + status.ToString());
  return false;
}

FailureMessage::FailureMessage(const char* file, int line)
    : file_(file), line_(line), text_(std::move(t_failure)) {}

FailureMessage::FailureMessage(const char* file, int line, const char* text)
    : file_(file), line_(line), text_(text) {}

FailureMessage::~FailureMessage() { ReportFailure(file_, line_, text_ + extra_); }

void FailureMessage::Append(const std::string& text) {
  if (extra_.empty()) extra_ = "  ";
  extra_ += text;
}

bool CurrentTestFailed() {
  std::lock_guard lock(g_mutex);
  return g_failures_of_current > 0;
}

void SkipTest(const std::string& reason) {
  std::lock_guard lock(g_mutex);
  g_skip_reason = reason;
}

int Main(int argc, char** argv) {
  std::vector<std::string> filters;
  int repeat = 1, jobs = 1;
  size_t slowest = 0;
  bool is_pinned = false;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg.starts_with("--filter=")) {
      filters = Split(arg.substr(9));
    } else if (arg.starts_with("--repeat=")) {
      repeat = std::atoi(arg.c_str() + 9);
    } else if (arg.starts_with("--slowest=")) {
      slowest = static_cast<size_t>(std::atoi(arg.c_str() + 10));
    } else if (arg.starts_with("--jobs=")) {
      jobs = std::clamp(std::atoi(arg.c_str() + 7), 1, kJobsMax);
    } else if (arg == "--pin") {
      is_pinned = true;
    } else if (arg == "--list") {
      for (const Case& test : Cases()) std::printf("%s\n", test.full_name().c_str());
      return 0;
    } else {
      std::fprintf(stderr, "unknown argument '%s'; see the first lines of test_main.cc\n", argv[i]);
      return 2;
    }
  }
  std::vector<const Case*> chosen;
  for (int round = 0; round < repeat; ++round) {
    for (const Case& test : Cases()) {
      if (Matches(test.full_name(), filters)) chosen.push_back(&test);
    }
  }
  if (chosen.empty()) {
    std::fprintf(stderr, "no test matched\n");
    return 2;
  }
  Share local;
  Share* share = &local;
  if (jobs > 1 || is_pinned) {
    share = RunJobs(chosen, jobs, slowest, is_pinned);
    if (share == nullptr) return 2;
  } else {
    RunShare(chosen, 0, slowest, local);
  }
  std::printf("native: %d passed, %d failed, %d skipped\n", share->passed.load(),
              share->failed.load(), share->skipped.load());
  return share->failed.load() == 0 ? 0 : 1;
}

}  // namespace rabit::testing

int main(int argc, char** argv) { return rabit::testing::Main(argc, argv); }

#include "engine/operation_log.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "testing/test.h"

namespace rabit {
namespace {

std::string Read(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

std::string Path(const std::string& name) {
  return "/tmp/rabit_operation_log." + name + "." + std::to_string(::getpid());
}

TEST(OperationLog, a_line_says_what_ran_how_large_and_how_long) {
  const std::string path = Path("line");
  const Logger logger;
  OperationLog log(1, logger);
  EXPECT_FALSE(log.is_active());
  ASSERT_OK(log.Start(path));
  EXPECT_TRUE(log.is_active());
  log.Add(
      {"layer \"1\",w", Kind::kAllreduce, DType::kBfloat16, 3, 512, 7'000'500, 9'001'002, true});
  log.Add({"x\ny\x1b[2J\xc2\x9b", Kind::kBarrier, DType::kUint8, kWorld, 0, 1, 5, false});
  log.Stop();
  EXPECT_FALSE(log.is_active());
  EXPECT_EQ(Read(path),
            "name,kind,type,group,bytes,begin_us,us,is_ok\n"
            "\"layer \"\"1\"\",w\",allreduce,bfloat16,3,512,7000.500,2000.502,1\n"
            "\"x\\ny\\x1b[2J\\x9b\",barrier,uint8,0,0,0.001,0.004,0\n");
  std::filesystem::remove(path);
}

TEST(OperationLog, no_line_of_many_threads_is_left_out) {
  constexpr int kThreads = 4, kEntries = 5000;
  const std::string path = Path("many");
  const Logger logger;
  OperationLog log(0, logger);
  ASSERT_OK(log.Start(path));
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&log] {
      for (int entry = 0; entry < kEntries; ++entry) log.Add({"tensor"});
    });
  }
  for (std::thread& each : threads) each.join();
  log.Stop();
  const std::string text = Read(path);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1 + kThreads * kEntries);
  std::filesystem::remove(path);
}

TEST(OperationLog, a_path_that_cannot_be_written_is_an_error_and_a_full_disk_is_a_warning) {
  const Logger quiet(LogLevel::kOff);
  OperationLog log(2, quiet);
  const Status status = log.Start("/nowhere/log.csv");
  EXPECT_FALSE(status.ok());
  EXPECT_TRUE(status.message().find("rank 2: cannot write the log '/nowhere/log.csv': No such") !=
              std::string::npos)
      << status;
  OperationLog full(2, quiet);
  ASSERT_OK(full.Start("/dev/full"));
  full.Add({"x"});
  full.Stop();
  EXPECT_FALSE(full.is_active());
}

}  // namespace
}  // namespace rabit

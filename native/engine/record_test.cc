#include "engine/record.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

#include "testing/test.h"

namespace rabit {
namespace {

constexpr size_t kFileBytes = 690'176;
constexpr size_t kEntriesAt = 77'824;

struct RecordFile {
  explicit RecordFile(size_t bytes, const std::string& magic = "rabitrec") {
    const int file = ::mkstemp(path.data());
    RABIT_CHECK(file >= 0 && ::ftruncate(file, static_cast<off_t>(bytes)) == 0, path);
    RABIT_CHECK(::pwrite(file, magic.data(), magic.size(), 0) == 8, path);
    ::close(file);
  }
  ~RecordFile() { ::unlink(path.c_str()); }
  std::string Content() const {
    std::ifstream file(path, std::ios::binary);
    std::stringstream all;
    all << file.rdbuf();
    return all.str();
  }
  int64_t At(size_t place) const {
    int64_t value = 0;
    std::memcpy(&value, Content().data() + place, sizeof value);
    return value;
  }
  std::string path = "/tmp/rabit_record_XXXXXX";
};

Request SomeRequest() {
  Request request;
  request.name = "grad.weight";
  request.signature.kind = Kind::kAllreduce;
  request.input.count = 100;
  return request;
}

struct StartedRecord {
  explicit StartedRecord(int64_t epoch, const std::string& log = {}) {
    EXPECT_OK(record.Start(file.path, epoch, log));
  }
  RecordFile file{kFileBytes};
  const Logger logger;
  OverlapClock clock;
  Record record{0, logger, clock};
};

TEST(Record, HoldsWhatAnOperationHasComeTo) {
  StartedRecord started(3);
  auto& [file, logger, clock, record] = started;

  NamedTensor named{true, record.NameOf("grad.weight")};
  const PendingRequest request({4097}, SomeRequest(), named, {}, 11);
  record.Submitted(request);
  record.Agreed({}, request, 7, 12);
  record.Started(4097, "builtin", "ring", 1, 13);
  record.Finished(request);

  const size_t entry = kEntriesAt + sizeof(RecordEntry);  // 4097 % 4096
  EXPECT_EQ(file.At(entry), 4097);
  EXPECT_EQ(file.At(entry + 8), 7);
  EXPECT_EQ(file.At(entry + 16), 11);
  EXPECT_EQ(file.At(entry + 24), 12);
  EXPECT_EQ(file.At(entry + 32), 13);
  EXPECT_EQ(file.At(entry + 48), 100);
  EXPECT_TRUE(file.Content().find("grad.weight") != std::string::npos);
  EXPECT_TRUE(file.Content().find("ring") != std::string::npos);
}

TEST(Record, HoldsCallsThatAreNotNegotiated) {
  StartedRecord started(1);
  auto& [file, logger, clock, record] = started;

  record.Ordered(1, SomeRequest().signature, 100, 11);
  record.Finished(1, {.name = "", .kind = Kind::kAllreduce, .bytes = 400, .end_ns = 14});

  const size_t entry = kEntriesAt + sizeof(RecordEntry);
  EXPECT_EQ(file.At(entry), 1);
  EXPECT_EQ(file.At(entry + 8), 0);  // no round
  EXPECT_EQ(file.At(entry + 16), 11);
  EXPECT_EQ(file.At(entry + 40), 14);
  EXPECT_TRUE(file.Content().find("(ordered)") != std::string::npos);
}

TEST(Record, NamesThatEndInANumberShareOneText) {
  StartedRecord started(1);
  auto& [file, logger, clock, record] = started;

  const auto first = record.NameOf("allreduce.noname.1");
  const auto second = record.NameOf("allreduce.noname.22");

  EXPECT_EQ(first.first, second.first);
  EXPECT_EQ(second.second, 22);
}

TEST(Record, NamesWithoutEndFillTheTextsAndNothingElse) {
  StartedRecord started(1);
  auto& [file, logger, clock, record] = started;

  for (int i = 0; i < 10'000; ++i) (void)record.NameOf("parameter" + std::to_string(i));

  EXPECT_EQ(record.NameOf("one.more.parameter").first, 0u);
  EXPECT_EQ(file.At(kEntriesAt), 0);
}

TEST(Record, AFileThatIsNoRecordIsRefused) {
  RecordFile small(100);
  RecordFile other(kFileBytes, "somefile");
  const Logger logger;
  const OverlapClock clock;
  Record record(0, logger, clock);

  const Status too_short = record.Start(small.path, 1);

  EXPECT_TRUE(too_short.message().find("too short") != std::string::npos);
  EXPECT_TRUE(!record.Start(other.path, 1).ok());
  EXPECT_TRUE(!record.Start("/tmp/there/is/none", 1).ok());
  record.Finished(1, {.name = "", .bytes = 4});
}

TEST(Record, OneCallIsWrittenToTheEntriesTheLogAndTheTimeline) {
  RecordFile log(0), timeline(0);
  StartedRecord started(1, log.path);
  Record& record = started.record;
  ASSERT_OK(record.timeline().Start(timeline.path, false));
  ReadyTensor ready;
  ready.name = "grad.weight";
  NamedTensor named{true, record.NameOf(ready.name)};
  const PendingRequest request({1}, SomeRequest(), named, {}, 11);

  record.Submitted(request);
  record.Agreed(ready, request, 7, 12);
  record.Finished(request);
  record.Stop();

  EXPECT_EQ(started.file.At(kEntriesAt + sizeof(RecordEntry) + 24), 12);
  EXPECT_TRUE(log.Content().find("\n\"grad.weight\",allreduce,float32,0,400,0.011,") !=
              std::string::npos);
  EXPECT_TRUE(timeline.Content().find("NEGOTIATE_ALLREDUCE") != std::string::npos);
  EXPECT_TRUE(timeline.Content().find("allreduce.grad.weight") != std::string::npos);
}

}  // namespace
}  // namespace rabit

#include "testing/memory_store.h"

#include "testing/store_conformance.h"

namespace rabit {
namespace {

// A Store that borrows another one.
class BorrowedStore final : public Store {
 public:
  explicit BorrowedStore(Store& store) : store_(store) {}
  Status Set(std::string_view key, std::string_view value) override {
    return store_.Set(key, value);
  }
  Result<std::string> Get(std::string_view key, Deadline deadline) override {
    return store_.Get(key, deadline);
  }
  Result<std::string> SetOnce(std::string_view key, std::string_view value) override {
    return store_.SetOnce(key, value);
  }
  Result<int64_t> Add(std::string_view key, int64_t amount) override {
    return store_.Add(key, amount);
  }

 private:
  Store& store_;
};

struct Fixture {
  std::unique_ptr<Store> Open() { return std::make_unique<BorrowedStore>(store); }
  testing::MemoryStore store;
};

RABIT_STORE_SUITE(MemoryStore, Fixture);

TEST(Board, a_full_board_refuses_and_keeps_what_it_has) {
  Board board(1000);
  ASSERT_OK(board.Set("a", std::string(500, 'x')));

  EXPECT_EQ(board.Set("b", std::string(500, 'x')).code(), Code::kResourceExhausted);
  EXPECT_EQ(board.Find("b"), nullptr);
  EXPECT_OK(board.Set("a", std::string(600, 'y')));
  EXPECT_EQ(board.Find("a")->size(), 600u);
}

TEST(Board, a_counter_that_would_overflow_is_refused) {
  Board board;
  ASSERT_OK(board.Add("c", INT64_MAX));
  EXPECT_EQ(board.Add("c", 1).status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace rabit

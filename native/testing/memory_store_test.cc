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
  Result<Versioned> Watch(std::string_view key, uint64_t seen, Deadline deadline) override {
    return store_.Watch(key, seen, deadline);
  }
  Result<Swap> CompareAndSet(std::string_view key, uint64_t version,
                             std::string_view value) override {
    return store_.CompareAndSet(key, version, value);
  }

 private:
  Store& store_;
};

struct BoardFixture {
  std::unique_ptr<Store> Open() { return std::make_unique<BorrowedStore>(store); }
  testing::MemoryStore store;
};

RABIT_STORE_SUITE(MemoryStore, BoardFixture);

TEST(Board, a_full_board_refuses_and_keeps_what_it_has) {
  Board board(1000);
  ASSERT_OK(board.Set("a", std::string(500, 'x')));

  EXPECT_EQ(board.Set("b", std::string(500, 'x')).code(), Code::kResourceExhausted);
  EXPECT_EQ(board.Find("b"), nullptr);
  EXPECT_OK(board.Set("a", std::string(600, 'y')));
  EXPECT_EQ(board.Find("a")->value.size(), 600u);
}

TEST(Board, what_does_not_fit_changes_no_version) {
  Board board(1000);
  ASSERT_OK(board.Set("a", "1"));

  EXPECT_EQ(board.CompareAndSet("a", 1, std::string(2000, 'x')).status().code(),
            Code::kResourceExhausted);
  EXPECT_EQ(board.Find("a")->version, 1u);
  EXPECT_TRUE(board.CompareAndSet("a", 1, "2")->is_mine);
}

}  // namespace
}  // namespace rabit

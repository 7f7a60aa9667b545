#include "rendezvous/board.h"

#include <string>

#include "testing/test.h"

namespace rabit {
namespace {

TEST(Board, forgotten_keys_make_room_for_others) {
  Board board(4096);
  EXPECT_OK(board.Set("kept", "as it is"));
  for (int epoch = 0; epoch < 500; ++epoch) {
    const std::string scope = std::to_string(epoch) + "/";
    for (const char* const key : {"host/0", "host/1", "address/0", "failed"}) {
      EXPECT_OK(board.Set(scope + key, std::string(500, 'x')));
    }
    board.Forget(scope, scope + "failed");
    EXPECT_TRUE(board.Find(scope + "host/1") == nullptr);
    EXPECT_TRUE(board.Find(scope + "failed") != nullptr);
    board.Forget(scope, {});
    EXPECT_TRUE(board.Find(scope + "failed") == nullptr);
  }
  EXPECT_EQ(board.Find("kept")->value, "as it is");
}

TEST(Board, a_prefix_is_no_other_epochs) {
  Board board;
  for (const char* const key : {"1", "1/host", "10/host", "11/host", "2/host"}) {
    EXPECT_OK(board.Set(key, ""));
  }
  board.Forget("1/", {});
  EXPECT_TRUE(board.Find("1/host") == nullptr);
  for (const char* const key : {"1", "10/host", "11/host", "2/host"}) {
    EXPECT_TRUE(board.Find(key) != nullptr) << key;
  }
}

}  // namespace
}  // namespace rabit

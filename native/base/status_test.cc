#include "base/status.h"

#include "base/result.h"
#include "testing/test.h"

namespace rabit {
namespace {

TEST(Status, ok_has_no_message) {
  Status status;

  EXPECT_TRUE(status.ok());
  EXPECT_EQ(status.message(), "");
  EXPECT_EQ(status.ToString(), "Ok");
  EXPECT_EQ(status.culprit(), -1);
}

TEST(Status, carries_code_message_and_culprit) {
  Status status = PeerLost(3, "rank 3 closed its connection");

  EXPECT_FALSE(status.ok());
  EXPECT_EQ(status.code(), Code::kPeerLost);
  EXPECT_EQ(status.culprit(), 3);
  EXPECT_EQ(status.ToString(), "PeerLost: rank 3 closed its connection");
}

TEST(Status, names_what_failed_once) {
  const Status status = PeerLost(3, "rank 3 closed its connection").Annotated("'x'");

  EXPECT_EQ(status.ToString(), "PeerLost: 'x': rank 3 closed its connection");
  EXPECT_EQ(status.culprit(), 3);
  EXPECT_EQ(status.Annotated("'x'").message(), status.message());
  EXPECT_OK(Status().Annotated("'x'"));
}

Result<int> Half(int value) {
  if (value % 2 != 0) return InvalidArgument("odd");
  return value / 2;
}

Result<int> Quarter(int value) {
  RABIT_ASSIGN_OR_RETURN(int half, Half(value));
  return Half(half);
}

TEST(Result, assign_or_return_passes_the_first_error_on) {
  ASSERT_OK(Quarter(8));
  EXPECT_EQ(*Quarter(8), 2);
  EXPECT_EQ(Quarter(6).status().message(), "odd");
}

}  // namespace
}  // namespace rabit

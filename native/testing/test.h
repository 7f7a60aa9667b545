// A unit-test runner with GoogleTest's words, in one header: TEST, EXPECT_*, ASSERT_*, filters.
// GoogleTest itself is on no index that a bare machine can install from; a swap is a sed.
#pragma once

#include <atomic>
#include <functional>
#include <ostream>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>

#include "base/status.h"

namespace rabit::testing {

// Adds a test to the list; called before main by TEST, and by suites that name their own cases.
int Register(std::string suite, std::string name, std::function<void()> body);

// Thread-safe: ranks that run as threads report through it.
void ReportFailure(const char* file, int line, const std::string& text);
bool CurrentTestFailed();
// The rest of the test is not run; the reason is printed with the summary.
void SkipTest(const std::string& reason);

template <class T>
std::string Show(const T& value) {
  std::ostringstream out;
  if constexpr (std::is_same_v<T, Status>) {
    out << value.ToString();
  } else if constexpr (std::is_enum_v<T>) {
    out << static_cast<long long>(value);
  } else if constexpr (requires { out << value; }) {
    out << value;
  } else {
    out << sizeof(T) << "-byte value";
  }
  return out.str();
}

// Streams extra text into a failure: EXPECT_EQ(a, b) << "at size " << n.
class FailureMessage {
 public:
  FailureMessage(const char* file, int line, std::string text)
      : file_(file), line_(line), text_(std::move(text)) {}
  FailureMessage(const FailureMessage&) = delete;
  ~FailureMessage() { ReportFailure(file_, line_, text_ + extra_.str()); }
  template <class T>
  FailureMessage& operator<<(const T& value) {
    if (extra_.str().empty()) extra_ << "  ";
    extra_ << Show(value);
    return *this;
  }

 private:
  const char* file_;
  int line_;
  std::string text_;
  std::ostringstream extra_;
};

struct ReturnFromTest {
  void operator=(const FailureMessage&) const {}
};

template <class A, class B, class Compare>
std::string CompareText(const char* a_text, const char* b_text, const char* op, const A& a,
                        const B& b, Compare compare) {
  if (compare(a, b)) return {};
  return std::string("expected ") + a_text + " " + op + " " + b_text + ", have " + Show(a) +
         " and " + Show(b);
}

// The switch keeps a macro inside an unbraced if/else from taking the wrong else.
#define RABIT_TEST_COMPARE(a, b, op, on_failure)                                         \
  switch (0)                                                                             \
  case 0:                                                                                \
  default:                                                                               \
    if (std::string rabit_text = ::rabit::testing::CompareText(                          \
            #a, #b, #op, (a), (b), [](const auto& x, const auto& y) { return x op y; }); \
        rabit_text.empty()) {                                                            \
    } else                                                                               \
      on_failure::rabit::testing::FailureMessage(__FILE__, __LINE__, rabit_text)

#define RABIT_TEST_CONDITION(condition, text, on_failure) \
  switch (0)                                              \
  case 0:                                                 \
  default:                                                \
    if (condition) {                                      \
    } else                                                \
      on_failure::rabit::testing::FailureMessage(__FILE__, __LINE__, text)

#define RABIT_TEST_STATUS(expression, on_failure)                                               \
  switch (0)                                                                                    \
  case 0:                                                                                       \
  default:                                                                                      \
    if (::rabit::Status rabit_seen = ::rabit::testing::StatusOf(expression); rabit_seen.ok()) { \
    } else                                                                                      \
      on_failure::rabit::testing::FailureMessage(                                               \
          __FILE__, __LINE__, std::string(#expression " is ") + rabit_seen.ToString())

inline const Status& StatusOf(const Status& status) { return status; }
template <class R>
  requires requires(const R& r) { r.status(); }
Status StatusOf(const R& result) {
  return result.status();
}

#define RABIT_TEST_RETURN return ::rabit::testing::ReturnFromTest() =

#define EXPECT_EQ(a, b) RABIT_TEST_COMPARE(a, b, ==, )
#define EXPECT_NE(a, b) RABIT_TEST_COMPARE(a, b, !=, )
#define EXPECT_LT(a, b) RABIT_TEST_COMPARE(a, b, <, )
#define EXPECT_LE(a, b) RABIT_TEST_COMPARE(a, b, <=, )
#define EXPECT_GT(a, b) RABIT_TEST_COMPARE(a, b, >, )
#define EXPECT_GE(a, b) RABIT_TEST_COMPARE(a, b, >=, )
#define EXPECT_TRUE(condition) RABIT_TEST_CONDITION(condition, "expected: " #condition, )
#define EXPECT_FALSE(condition) RABIT_TEST_CONDITION(!(condition), "expected not: " #condition, )
#define EXPECT_OK(expression) RABIT_TEST_STATUS(expression, )
#define ASSERT_EQ(a, b) RABIT_TEST_COMPARE(a, b, ==, RABIT_TEST_RETURN)
#define ASSERT_NE(a, b) RABIT_TEST_COMPARE(a, b, !=, RABIT_TEST_RETURN)
#define ASSERT_LT(a, b) RABIT_TEST_COMPARE(a, b, <, RABIT_TEST_RETURN)
#define ASSERT_GT(a, b) RABIT_TEST_COMPARE(a, b, >, RABIT_TEST_RETURN)
#define ASSERT_TRUE(condition) \
  RABIT_TEST_CONDITION(condition, "expected: " #condition, RABIT_TEST_RETURN)
#define ASSERT_FALSE(condition) \
  RABIT_TEST_CONDITION(!(condition), "expected not: " #condition, RABIT_TEST_RETURN)
#define ASSERT_OK(expression) RABIT_TEST_STATUS(expression, RABIT_TEST_RETURN)
#define ADD_FAILURE() ::rabit::testing::FailureMessage(__FILE__, __LINE__, "failed")
#define SKIP_TEST(reason)               \
  do {                                  \
    ::rabit::testing::SkipTest(reason); \
    return;                             \
  } while (false)

#define TEST(suite, name)                                                     \
  static void RabitTest_##suite##_##name();                                   \
  [[maybe_unused]] static const int rabit_registered_##suite##_##name =       \
      ::rabit::testing::Register(#suite, #name, &RabitTest_##suite##_##name); \
  static void RabitTest_##suite##_##name()

}  // namespace rabit::testing

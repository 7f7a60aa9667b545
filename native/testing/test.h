// A unit-test runner with GoogleTest's words, in one header: TEST, EXPECT_*, ASSERT_*, filters.
// GoogleTest itself is on no index that a bare machine can install from; a swap is a sed.
#pragma once

#include <functional>
#include <ostream>
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

// What `write` streams of `value`; one function for every type, as a test compiles many checks.
std::string Streamed(void (*write)(std::ostream& out, const void* value), const void* value);

// For EXPECT_TRUE: a text with this part.
inline bool Has(std::string_view text, std::string_view part) {
  return text.find(part) != text.npos;
}

template <class T>
std::string Show(const T& value) {
  if constexpr (std::is_same_v<T, Status>) {
    return value.ToString();
  } else if constexpr (std::is_enum_v<T>) {
    return std::to_string(static_cast<long long>(value));
  } else if constexpr (requires(std::ostream& out) { out << value; }) {
    return Streamed(
        [](std::ostream& out, const void* seen) { out << *static_cast<const T*>(seen); }, &value);
  } else {
    return std::to_string(sizeof(T)) + "-byte value";
  }
}

// Reports a failure when the statement ends; text may be streamed into it:
// EXPECT_EQ(a, b) << "at size " << n.
class FailureMessage {
 public:
  // Without a text: that of the check which has just failed on this thread.
  FailureMessage(const char* file, int line);
  FailureMessage(const char* file, int line, const char* text);
  FailureMessage(const FailureMessage&) = delete;
  ~FailureMessage();
  template <class T>
  FailureMessage& operator<<(const T& value) {
    Append(Show(value));
    return *this;
  }
  FailureMessage& operator<<(const char* value) {
    Append(value);
    return *this;
  }

 private:
  void Append(const std::string& text);

  const char* file_;
  int line_;
  std::string text_;
  std::string extra_;
};

struct ReturnFromTest {
  void operator=(const FailureMessage&) const {}
};

// The checks keep the text of their failure for FailureMessage, on the thread that made them: a
// check that holds is then one call, and hundreds of them in a file stay cheap to compile.
void KeepFailure(std::string text);
bool CheckOk(const char* text, const Status& status);

// One type for each operator, so that checks of the same types share their code.
#define RABIT_TEST_OPERATOR(name, op)                                      \
  struct name {                                                            \
    static constexpr const char* kText = " " #op " ";                      \
    bool operator()(const auto& x, const auto& y) const { return x op y; } \
  }
RABIT_TEST_OPERATOR(Equal, ==);
RABIT_TEST_OPERATOR(NotEqual, !=);
RABIT_TEST_OPERATOR(Less, <);
RABIT_TEST_OPERATOR(LessEqual, <=);
RABIT_TEST_OPERATOR(Greater, >);
RABIT_TEST_OPERATOR(GreaterEqual, >=);
#undef RABIT_TEST_OPERATOR

template <class Compare, class A, class B>
bool Check(const char* a_text, const char* b_text, const A& a, const B& b) {
  if (Compare()(a, b)) return true;
  KeepFailure(std::string("expected ") + a_text + Compare::kText + b_text + ", have " + Show(a) +
              " and " + Show(b));
  return false;
}

// The switch keeps a macro inside an unbraced if/else from taking the wrong else.
#define RABIT_TEST_CHECK(holds, on_failure, ...) \
  switch (0)                                     \
  case 0:                                        \
  default:                                       \
    if (holds) {                                 \
    } else                                       \
      on_failure::rabit::testing::FailureMessage(__FILE__, __LINE__ __VA_OPT__(, ) __VA_ARGS__)

#define RABIT_TEST_COMPARE(Compare, a, b, on_failure)                                      \
  RABIT_TEST_CHECK((::rabit::testing::Check<::rabit::testing::Compare>(#a, #b, (a), (b))), \
                   on_failure)

#define RABIT_TEST_STATUS(expression, on_failure)                                            \
  RABIT_TEST_CHECK(                                                                          \
      ::rabit::testing::CheckOk(#expression " is ", ::rabit::testing::StatusOf(expression)), \
      on_failure)

inline const Status& StatusOf(const Status& status) { return status; }
template <class R>
  requires requires(const R& r) { r.status(); }
Status StatusOf(const R& result) {
  return result.status();
}

#define RABIT_TEST_RETURN return ::rabit::testing::ReturnFromTest() =

#define EXPECT_EQ(a, b) RABIT_TEST_COMPARE(Equal, a, b, )
#define EXPECT_NE(a, b) RABIT_TEST_COMPARE(NotEqual, a, b, )
#define EXPECT_LT(a, b) RABIT_TEST_COMPARE(Less, a, b, )
#define EXPECT_LE(a, b) RABIT_TEST_COMPARE(LessEqual, a, b, )
#define EXPECT_GT(a, b) RABIT_TEST_COMPARE(Greater, a, b, )
#define EXPECT_GE(a, b) RABIT_TEST_COMPARE(GreaterEqual, a, b, )
#define EXPECT_TRUE(condition) RABIT_TEST_CHECK(condition, , "expected: " #condition)
#define EXPECT_FALSE(condition) RABIT_TEST_CHECK(!(condition), , "expected not: " #condition)
#define EXPECT_OK(expression) RABIT_TEST_STATUS(expression, )
#define ASSERT_EQ(a, b) RABIT_TEST_COMPARE(Equal, a, b, RABIT_TEST_RETURN)
#define ASSERT_NE(a, b) RABIT_TEST_COMPARE(NotEqual, a, b, RABIT_TEST_RETURN)
#define ASSERT_LT(a, b) RABIT_TEST_COMPARE(Less, a, b, RABIT_TEST_RETURN)
#define ASSERT_GT(a, b) RABIT_TEST_COMPARE(Greater, a, b, RABIT_TEST_RETURN)
#define ASSERT_TRUE(condition) \
  RABIT_TEST_CHECK(condition, RABIT_TEST_RETURN, "expected: " #condition)
#define ASSERT_FALSE(condition) \
  RABIT_TEST_CHECK(!(condition), RABIT_TEST_RETURN, "expected not: " #condition)
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

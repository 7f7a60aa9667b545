#include "backend/mpi/mpi_handles.h"

#include "backend/mpi/mpi_library.h"
#include "testing/test.h"

namespace rabit {
namespace {

using testing::Has;

constexpr const char* kComplete =
    "library=/no/such/libmpi.so;width=4;in_place=18446744073709551615;comm=1140850688;"
    "errors_return=1409286145;byte=1275068685;float32=1275069450;sum=1476395011;"
    "version=A library 1.2;transport=shared memory";

std::string MessageOf(const std::string& text) {
  return MpiHandles::Parse(text).status().message();
}
TEST(MpiHandles, values_are_read_by_name) {
  const Result<MpiHandles> handles = MpiHandles::Parse(kComplete);

  ASSERT_OK(handles);
  EXPECT_EQ(handles->width, 4);
  EXPECT_EQ(handles->in_place, ~uint64_t{0});
  EXPECT_EQ(handles->comm, 0x44000000u);
  EXPECT_EQ(handles->dtypes[static_cast<size_t>(DType::kFloat32)], 1275069450u);
  EXPECT_EQ(handles->dtypes[static_cast<size_t>(DType::kFloat16)], 0u);
  EXPECT_EQ(handles->ops[static_cast<size_t>(ReduceOp::kSum)], 1476395011u);
  EXPECT_EQ(handles->version, "A library 1.2");
  EXPECT_FALSE(handles->is_serialized);
}

TEST(MpiHandles, threads_that_take_turns_are_read) {
  const Result<MpiHandles> handles = MpiHandles::Parse(std::string(kComplete) + ";serialized=1");

  ASSERT_OK(handles);
  EXPECT_TRUE(handles->is_serialized);
}

TEST(MpiHandles, what_cannot_be_is_refused) {
  EXPECT_TRUE(Has(MessageOf(""), "must be 4 or 8"));
  EXPECT_TRUE(Has(MessageOf(std::string(kComplete) + ";width=5"), "must be 4 or 8"));
  EXPECT_TRUE(Has(MessageOf(std::string(kComplete) + ";comm=x"), "'comm=x' is not a number"));
  EXPECT_TRUE(Has(MessageOf(std::string(kComplete) + ";comm=0"), "must all be given"));
  EXPECT_TRUE(Has(MessageOf(std::string(kComplete) + ";nonsense=1"), "'nonsense=1' is unknown"));
  EXPECT_TRUE(Has(MessageOf(std::string(kComplete) + ";loose"), "'loose' has no '='"));
  EXPECT_TRUE(Has(MessageOf(std::string(kComplete) + ";message_bytes=1"), "message_bytes"));
}

TEST(MpiLibrary, a_library_that_is_not_loaded_is_not_loaded_now) {
  Result<MpiHandles> handles = MpiHandles::Parse(kComplete);
  ASSERT_OK(handles);

  const Status status = MpiLibrary::Find(*handles).status();

  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_TRUE(Has(status.message(), "/no/such/libmpi.so"));
  EXPECT_TRUE(Has(status.message(), "import mpi4py.MPI"));
}

TEST(MpiLibrary, a_library_without_the_functions_names_the_first_that_is_missing) {
  Result<MpiHandles> handles = MpiHandles::Parse(kComplete);
  ASSERT_OK(handles);
  handles->library = "libc.so.6";

  const Status status = MpiLibrary::Find(*handles).status();

  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_TRUE(Has(status.message(), "MPI_Finalized"));
}

}  // namespace
}  // namespace rabit

// The arguments of a collective as the ranks compare them, beside the layouts of their trees.
#ifndef LEAFPACK_DISTRIBUTED_TREE_CALL_ARGUMENTS_H_
#define LEAFPACK_DISTRIBUTED_TREE_CALL_ARGUMENTS_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/numeric/int128.h"
#include "absl/types/span.h"

#include "distributed/core/engine.h"
#include "tensordict/layout.h"

namespace leafpack::internal {

// An argument of a call, as name and printable value: what is hashed is what is reported.
struct CallArgument {
  std::string_view name;
  std::string value;
};

// Digest of the arguments and of whatever `more` holds; never zero.
absl::uint128 DigestOfArguments(absl::Span<const CallArgument> arguments, std::string_view more);

// The arguments as entries of a description.
std::vector<DescriptionEntry> DescribeArguments(absl::Span<const CallArgument> arguments);

// One entry per leaf: what follows the arguments where layouts must be equal.
void AppendLayout(const Layout& layout, std::vector<DescriptionEntry>& entries);

}  // namespace leafpack::internal

#endif  // LEAFPACK_DISTRIBUTED_TREE_CALL_ARGUMENTS_H_

#include "distributed/tree/filter.h"

#include <c10/core/ScalarType.h>

namespace leafpack {

bool LeafFilter::Takes(const NestedKey& path, const at::Tensor& leaf) const {
  switch (kind_) {
    case Kind::kAll: return true;
    case Kind::kFloating:
      return leaf.defined() && (c10::isFloatingType(leaf.scalar_type()) ||
                                c10::isComplexType(leaf.scalar_type()));
    case Kind::kPredicate: return predicate_(path, leaf);
  }
  return true;
}

}  // namespace leafpack

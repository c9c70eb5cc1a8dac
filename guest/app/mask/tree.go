package mask

// tree finds the patterns of a set in a stream (Aho and Corasick). Its nodes are small,
// since secrets may have hundreds of kilobytes.
type tree struct {
	nodes []node
	root  [256]int32 // the root's children; 0: none
}

type node struct {
	child, sibling int32 // 0: none
	fail           int32
	deep           int32 // length of the path to it
	match          int32 // length of the longest pattern that ends here; 0: none
	b              byte
}

func newTree(patterns []string) *tree {
	t := &tree{nodes: make([]node, 1)}
	for _, p := range patterns {
		at := int32(0)
		for i := range len(p) {
			to := t.child(at, p[i])
			if to == 0 {
				to = t.grow(at, p[i])
			}
			at = to
		}
		t.nodes[at].match = t.nodes[at].deep
	}
	t.link()
	return t
}

func (t *tree) child(at int32, b byte) int32 {
	if at == 0 {
		return t.root[b]
	}
	for c := t.nodes[at].child; c != 0; c = t.nodes[c].sibling {
		if t.nodes[c].b == b {
			return c
		}
	}
	return 0
}

func (t *tree) grow(at int32, b byte) int32 {
	to := int32(len(t.nodes))
	t.nodes = append(t.nodes, node{b: b, deep: t.nodes[at].deep + 1, sibling: t.nodes[at].child})
	t.nodes[at].child = to
	if at == 0 {
		t.root[b] = to
	}
	return to
}

// link finds, breadth first, for each node the longest other path that ends with the
// same bytes.
func (t *tree) link() {
	var queue []int32
	for c := t.nodes[0].child; c != 0; c = t.nodes[c].sibling {
		queue = append(queue, c)
	}
	for i := 0; i < len(queue); i++ {
		at := queue[i]
		for c := t.nodes[at].child; c != 0; c = t.nodes[c].sibling {
			fail := t.next(t.nodes[at].fail, t.nodes[c].b)
			t.nodes[c].fail = fail
			t.nodes[c].match = max(t.nodes[c].match, t.nodes[fail].match)
			queue = append(queue, c)
		}
	}
}

// next is the state after another byte.
func (t *tree) next(at int32, b byte) int32 {
	for {
		if to := t.child(at, b); to != 0 {
			return to
		}
		if at == 0 {
			return 0
		}
		at = t.nodes[at].fail
	}
}

func (t *tree) empty() bool { return len(t.nodes) == 1 }

// depth is how many of the last bytes may be a pattern's beginning.
func (t *tree) depth(at int32) int { return int(t.nodes[at].deep) }

// longest is the length of the longest pattern that the last bytes are.
func (t *tree) longest(at int32) int { return int(t.nodes[at].match) }

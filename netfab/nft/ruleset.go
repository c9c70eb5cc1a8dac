package nft

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// markerPrefix begins the name of an empty chain in each of our tables. The rest of
// the name is the table's fingerprint. A table is replaced
// in one transaction, so the marker is there only if all of it is.
const markerPrefix = "spec_"

// Ruleset is the whole content of one table.
type Ruleset struct {
	Table  string
	family nftables.TableFamily
	sets   []set
	chains []*chain
}

// set is a named set of IPv4 addresses: sorted ranges that do not overlap, or
// where size is set, up to so many single ones that rules add.
type set struct {
	name   string
	ranges []addrRange
	size   uint32
}

// chain is a regular chain, or a base chain where hook is set.
type chain struct {
	name     string
	kind     nftables.ChainType
	hook     *nftables.ChainHook
	priority nftables.ChainPriority
	policy   nftables.ChainPolicy
	rules    [][]expr.Any
}

// add appends one rule whose expressions are the parts, in order.
func (c *chain) add(parts ...[]expr.Any) {
	var rule []expr.Any
	for _, p := range parts {
		rule = append(rule, p...)
	}
	c.rules = append(c.rules, rule)
}

func (r *Ruleset) base(name string, kind nftables.ChainType, hook *nftables.ChainHook, priority int32, policy nftables.ChainPolicy) *chain {
	c := &chain{name: name, kind: kind, hook: hook, priority: nftables.ChainPriority(priority), policy: policy}
	r.chains = append(r.chains, c)
	return c
}

func (r *Ruleset) chain(name string) *chain {
	c := &chain{name: name}
	r.chains = append(r.chains, c)
	return c
}

// Fingerprint is a digest of everything in the table. Two rulesets have the
// same one only if the kernel would treat packets the same.
func (r *Ruleset) Fingerprint() string {
	var b bytes.Buffer
	fmt.Fprintln(&b, r.Table, r.family)
	for _, s := range r.sets {
		fmt.Fprintln(&b, s.name, s.ranges, s.size)
	}
	for _, c := range r.chains {
		fmt.Fprintln(&b, c.name, c.kind, c.priority, c.policy)
		if c.hook != nil {
			fmt.Fprintln(&b, *c.hook)
		}
		for _, rule := range c.rules {
			for _, e := range rule {
				describe(&b, e)
			}
			fmt.Fprintln(&b)
		}
	}
	sum := sha256.Sum256(b.Bytes())
	return hex.EncodeToString(sum[:8])
}

// describe writes an expression by its values, those inside it included.
func describe(b *bytes.Buffer, e expr.Any) {
	if d, ok := e.(*expr.Dynset); ok {
		for _, inner := range d.Exprs {
			describe(b, inner)
		}
		bare := *d
		bare.Exprs = nil
		e = &bare
	}
	fmt.Fprintf(b, "%T%+v ", e, e)
}

// Ensure makes the table in the calling thread's network namespace hold
// exactly r, and says whether it had to change anything. The old content is
// replaced by the new in one transaction: no packet meets a half-made table.
func Ensure(r *Ruleset) (changed bool, err error) {
	present, err := Present(r)
	if err != nil || present {
		return false, err
	}
	conn := &nftables.Conn{}
	table := &nftables.Table{Name: r.Table, Family: r.family}
	// Adding first makes the deletion succeed where there was no table.
	conn.AddTable(table)
	conn.DelTable(table)
	conn.AddTable(table)
	if err := r.queue(conn, table); err != nil {
		return false, fmt.Errorf("encode nft table %s: %w", r.Table, err)
	}
	if err := conn.Flush(); err != nil {
		return false, fmt.Errorf("apply nft table %s: %w", r.Table, err)
	}
	return true, nil
}

// Present says whether the calling thread's network namespace has the table
// with exactly this content, as far as its marker tells.
func Present(r *Ruleset) (bool, error) {
	conn := &nftables.Conn{}
	chains, err := conn.ListChainsOfTableFamily(r.family)
	if err != nil {
		return false, fmt.Errorf("list nft chains: %w", err)
	}
	marker := markerPrefix + r.Fingerprint()
	for _, c := range chains {
		if c.Table != nil && c.Table.Name == r.Table && c.Name == marker {
			return true, nil
		}
	}
	return false, nil
}

// Delete removes the table of family inet from the calling thread's network namespace. A
// table that is not there is not an error.
func Delete(name string) error {
	conn := &nftables.Conn{}
	table := &nftables.Table{Name: name, Family: nftables.TableFamilyINet}
	conn.AddTable(table)
	conn.DelTable(table)
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("delete nft table %s: %w", name, err)
	}
	return nil
}

// queue adds everything of r to the transaction: sets and chains before the
// rules, because rules refer to both.
func (r *Ruleset) queue(conn *nftables.Conn, table *nftables.Table) error {
	sets := make(map[string]uint32, len(r.sets))
	for i, s := range r.sets {
		// The id only has to be unique in the transaction. Left at zero, the
		// library would take it from a counter that it does not lock.
		id := uint32(i + 1)
		sets[s.name] = id
		err := conn.AddSet(&nftables.Set{
			Table: table, ID: id, Name: s.name, KeyType: nftables.TypeIPAddr,
			Interval: s.size == 0, Dynamic: s.size > 0, Size: s.size,
		}, s.elements())
		if err != nil {
			return err
		}
	}
	chains := make(map[string]*nftables.Chain, len(r.chains))
	for _, c := range r.chains {
		nc := &nftables.Chain{Name: c.name, Table: table}
		if c.hook != nil {
			nc.Type, nc.Hooknum, nc.Priority, nc.Policy = c.kind, c.hook, &c.priority, &c.policy
		}
		chains[c.name] = conn.AddChain(nc)
	}
	for _, c := range r.chains {
		for _, rule := range c.rules {
			exprs := make([]expr.Any, len(rule))
			for i, e := range rule {
				switch l := e.(type) {
				case *expr.Lookup:
					bound := *l
					bound.SetID = sets[l.SetName]
					e = &bound
				case *expr.Dynset:
					bound := *l
					bound.SetID = sets[l.SetName]
					e = &bound
				}
				exprs[i] = e
			}
			conn.AddRule(&nftables.Rule{Table: table, Chain: chains[c.name], Exprs: exprs})
		}
	}
	conn.AddChain(&nftables.Chain{Name: markerPrefix + r.Fingerprint(), Table: table})
	return nil
}

// ForwardDrops lists, as "family table chain", the chains of other people's
// tables that drop forwarded packets by policy. nftables lets a packet pass
// only if every base chain of a hook does, so these may block our guests
// whatever our own table says. ours is the prefix of the names to leave out.
func ForwardDrops(ours string) ([]string, error) {
	conn := &nftables.Conn{}
	chains, err := conn.ListChains()
	if err != nil {
		return nil, fmt.Errorf("list nft chains: %w", err)
	}
	var found []string
	for _, c := range chains {
		family := ""
		switch c.Table.Family {
		case nftables.TableFamilyIPv4:
			family = "ip"
		case nftables.TableFamilyINet:
			family = "inet"
		}
		if family == "" || c.Hooknum == nil || *c.Hooknum != *nftables.ChainHookForward ||
			c.Policy == nil || *c.Policy != nftables.ChainPolicyDrop || strings.HasPrefix(c.Table.Name, ours) {
			continue
		}
		found = append(found, family+" "+c.Table.Name+" "+c.Name)
	}
	return found, nil
}

package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berth-cloud/berth/controlplane/api"
)

func (a *app) tree() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "tree [ID]",
		Short: "Draw which sandbox was forked from which",
		Long: `Draw which sandbox was forked from which: the tree that contains ID, or all
trees. A deleted parent is shown as such.`,
		Example: `  berth tree
  berth tree $id`,
		Args:              wants(0, 1, "ID"),
		ValidArgsFunction: a.completeSandboxes,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client(envToken, envJWT)
			if err != nil {
				return err
			}
			var list []api.Sandbox
			for sb, err := range c.Sandboxes(cmd.Context()) {
				if err != nil {
					return err
				}
				list = append(list, sb)
			}
			roots := forest(list)
			if len(args) == 1 {
				root := rootOf(roots, args[0])
				if root == nil {
					return fmt.Errorf("no such sandbox: %s", args[0])
				}
				roots = []*forked{root}
			} else if !all {
				roots = slices.DeleteFunc(roots, func(f *forked) bool { return len(f.Children) == 0 })
			}
			if a.json {
				return a.printJSON(roots)
			}
			if len(roots) == 0 {
				a.note("no sandbox has been forked; berth fork ID forks one")
			}
			for _, r := range roots {
				r.draw(a, "", "")
			}
			return nil
		},
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "include sandboxes that were never forked")
	return cmd
}

// forked is a sandbox with its children.
type forked struct {
	ID       string    `json:"id"`
	Status   string    `json:"status"`
	Template string    `json:"template"`
	Agent    string    `json:"agent_id"`
	Tree     string    `json:"fork_tree_id,omitempty"`
	Role     string    `json:"fork_tree_role,omitempty"`
	Index    int       `json:"fork_index"`
	Children []*forked `json:"children"`
	made     *api.Sandbox
}

// forest arranges sandboxes in trees of forks. A deleted parent is a root without
// a sandbox.
func forest(list []api.Sandbox) []*forked {
	nodes := map[string]*forked{}
	for i := range list {
		sb := &list[i]
		k := keysOf(sb)
		nodes[sb.ID] = &forked{
			ID: sb.ID, Status: string(sb.Status), Template: sb.Template, Agent: sb.AgentID,
			Tree: k.Tree, Role: k.Role, Index: k.Index, Children: []*forked{}, made: sb,
		}
	}
	var roots []*forked
	for i := range list {
		n := nodes[list[i].ID]
		parent := list[i].ForkedFrom
		if parent == nil {
			roots = append(roots, n)
			continue
		}
		p := nodes[*parent]
		if p == nil {
			p = &forked{ID: *parent, Status: "deleted", Children: []*forked{}}
			nodes[*parent] = p
			roots = append(roots, p)
		}
		p.Children = append(p.Children, n)
	}
	for _, n := range nodes {
		slices.SortFunc(n.Children, func(x, y *forked) int {
			if c := x.made.CreatedAt.Compare(y.made.CreatedAt.Time); c != 0 && x.Tree != y.Tree {
				return c
			}
			return x.Index - y.Index
		})
	}
	return roots
}

// rootOf returns the tree that contains a sandbox.
func rootOf(roots []*forked, id string) *forked {
	for _, r := range roots {
		if r.has(id) {
			return r
		}
	}
	return nil
}

func (f *forked) has(id string) bool {
	return f.ID == id || slices.ContainsFunc(f.Children, func(c *forked) bool { return c.has(id) })
}

// draw prints the sandbox after lead, and its descendants after rest.
func (f *forked) draw(a *app, lead, rest string) {
	about := []string{f.ID, f.Status}
	if f.Template != "" {
		about = append(about, f.Template)
	}
	if f.Agent != "" {
		about = append(about, "on "+f.Agent)
	}
	if f.Tree != "" {
		about = append(about, fmt.Sprintf("%s #%d", f.Tree, f.Index))
	}
	if f.Role == "promoted" {
		about = append(about, "promoted")
	}
	fmt.Fprintln(a.stdout, lead+strings.Join(about, "  "))
	for i, c := range f.Children {
		if i == len(f.Children)-1 {
			c.draw(a, rest+"└─ ", rest+"   ")
		} else {
			c.draw(a, rest+"├─ ", rest+"│  ")
		}
	}
}

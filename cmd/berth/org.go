package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berth-cloud/berth/controlplane/api"
)

func (a *app) org() *cobra.Command {
	g := group("org", "Organizations and their people",
		"An organization is a workspace: what owns sandboxes, databases and keys. Its members\nmay do what their roles say. These commands need BERTH_JWT; those about people act in\nthe current organization, or in that of --org.",
		a.orgList(), a.orgCreate(), a.orgUse(), a.orgLimits(), a.orgMembers(), a.orgInvite(), a.orgInvitations(), a.orgAccept(), a.orgRole(), a.orgRemove(), a.orgDelete())
	g.Aliases = []string{"orgs"}
	return g
}

// inOrg adds --org to a command, and gives it a client and the organization's id.
func (a *app) inOrg(cmd *cobra.Command, run func(ctx context.Context, c *api.Client, org string, args []string) error) *cobra.Command {
	org := cmd.Flags().String("org", "", "id of the organization (default: the current one)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.client(envJWT)
		if err != nil {
			return err
		}
		id := *org
		if id == "" {
			me, err := c.Me(cmd.Context())
			if err != nil {
				return err
			}
			if me.CurrentOrg == nil {
				return fmt.Errorf("you are a member of no organization; create one: berth org create NAME")
			}
			id = me.CurrentOrg.ID
		}
		return run(cmd.Context(), c, id, args)
	}
	return cmd
}

// everyPage collects all pages of a list.
func everyPage[T any](list func(api.Page) ([]T, string, error)) ([]T, error) {
	all := []T{}
	for page, next := (api.Page{Limit: api.MaxListLimit}), "first"; next != ""; page.Cursor = next {
		items, n, err := list(page)
		if err != nil {
			return nil, err
		}
		all, next = append(all, items...), n
	}
	return all, nil
}

func (a *app) orgList() *cobra.Command {
	return &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List your organizations; * marks the current one",
		Example: `  berth org ls`,
		Args:    wants(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client(envJWT)
			if err != nil {
				return err
			}
			me, err := c.Me(cmd.Context())
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(me.Orgs)
			}
			rows := [][]string{{"ID", "NAME", "ROLE", "TIER", "AGE"}}
			for _, o := range me.Orgs {
				id := o.ID
				if me.CurrentOrg != nil && me.CurrentOrg.ID == id {
					id += " *"
				}
				rows = append(rows, []string{id, o.Name, string(o.Role), o.Tier, age(o.CreatedAt.Time)})
			}
			return a.table(rows)
		},
	}
}

func (a *app) orgCreate() *cobra.Command {
	return &cobra.Command{
		Use: "create NAME", Short: "Create an organization that you own, and print its id",
		Example: `  berth org use $(berth org create "Research")`,
		Args:    wants(1, 1, "NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client(envJWT)
			if err != nil {
				return err
			}
			o, err := c.CreateOrg(cmd.Context(), api.CreateOrg{Name: args[0]})
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(o)
			}
			fmt.Fprintln(a.stdout, o.ID)
			return nil
		},
	}
}

func (a *app) orgUse() *cobra.Command {
	return &cobra.Command{
		Use: "use ORG", Short: "Act in another organization from now on",
		Long: `Act in another organization, named by its id or its name, from now on: with your JWT. An
API key (BERTH_TOKEN, or that of the context) acts in the workspace that it was made in,
always, and commands about sandboxes, apps and the rest prefer it: make one there with
"berth token create", and give it to "berth login".`,
		Example: `  berth org use ws-q5t3nz7k`,
		Args:    wants(1, 1, "ORG"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client(envJWT)
			if err != nil {
				return err
			}
			id, err := orgNamed(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			me, err := c.SetCurrentOrg(cmd.Context(), id)
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(me)
			}
			if me.CurrentOrg != nil {
				a.note("you act in %s (%s) from now on", me.CurrentOrg.Name, me.CurrentOrg.ID)
				a.warnOfKey(cmd.Context(), me.CurrentOrg)
			}
			return nil
		},
	}
}

// orgNamed is the id of one of the user's organizations, which is named by it or by a
// name that no other has.
func orgNamed(ctx context.Context, c *api.Client, name string) (string, error) {
	me, err := c.Me(ctx)
	if err != nil {
		return "", err
	}
	var found []string
	for _, o := range me.Orgs {
		if o.ID == name {
			return name, nil
		}
		if o.Name == name {
			found = append(found, o.ID)
		}
	}
	switch len(found) {
	case 0:
		return "", fmt.Errorf("you are a member of no organization %q: berth org ls shows yours", name)
	case 1:
		return found[0], nil
	}
	return "", fmt.Errorf("%d organizations are named %q; name one by its id: %s", len(found), name, strings.Join(found, ", "))
}

// warnOfKey says so if the API key, which most commands prefer to the JWT, is of another
// workspace.
func (a *app) warnOfKey(ctx context.Context, current *api.Org) {
	from, err := a.context()
	if err != nil || a.credential(from, []string{envToken}) == "" {
		return
	}
	of := "its own workspace"
	if c, err := a.client(envToken); err == nil {
		if u, err := c.Usage(ctx, ""); err == nil { // that not every key may read
			if u.WorkspaceID == current.ID {
				return
			}
			of = "its own workspace, " + u.WorkspaceID
		}
	}
	a.note(`warning: your API key acts in %s, always, and commands about sandboxes, apps
and the rest use it; for one that acts here:
  berth token create --name NAME    # then berth login with it, or export BERTH_TOKEN`, of)
}

func (a *app) orgLimits() *cobra.Command {
	return a.inOrg(&cobra.Command{
		Use: "limits", Short: "Show the limits of an organization, and what it uses of them", Example: `  berth org limits`, Args: wants(0, 0, ""),
	}, func(ctx context.Context, c *api.Client, org string, _ []string) error {
		o, err := c.GetOrg(ctx, org)
		if err != nil {
			return err
		}
		if a.json {
			return a.printJSON(o)
		}
		most, err := numbers(o.Limits)
		if err != nil {
			return err
		}
		used, err := numbers(o.Usage)
		if err != nil {
			return err
		}
		rows := [][]string{{"LIMIT", "USED", "AT MOST"}}
		all := maps.Clone(used)
		maps.Copy(all, most)
		for _, name := range sortedKeys(all) {
			row := []string{name, "-", "-"}
			if n, ok := used[name]; ok {
				row[1] = strconv.Itoa(n)
			}
			if n, ok := most[name]; ok && n >= 0 {
				row[2] = strconv.Itoa(n)
			}
			rows = append(rows, row)
		}
		a.note("%s (%s), tier %s", o.Name, o.ID, o.Tier)
		return a.table(rows)
	})
}

// numbers are the fields of limits or of usage by their names.
func numbers(of any) (map[string]int, error) {
	raw, err := json.Marshal(of)
	if err != nil {
		return nil, err
	}
	out := map[string]int{}
	return out, json.Unmarshal(raw, &out)
}

func (a *app) orgMembers() *cobra.Command {
	return a.inOrg(&cobra.Command{
		Use: "members", Short: "List the people of an organization", Example: `  berth org members`, Args: wants(0, 0, ""),
	}, func(ctx context.Context, c *api.Client, org string, _ []string) error {
		all, err := everyPage(func(p api.Page) ([]api.Member, string, error) { return c.ListMembers(ctx, org, p) })
		if err != nil {
			return err
		}
		if a.json {
			return a.printJSON(all)
		}
		rows := [][]string{{"USER", "EMAIL", "ROLE"}}
		for _, m := range all {
			rows = append(rows, []string{m.UserID, orDash(m.Email), string(m.Role)})
		}
		return a.table(rows)
	})
}

func (a *app) orgInvite() *cobra.Command {
	var role string
	cmd := a.inOrg(&cobra.Command{
		Use: "invite EMAIL", Short: "Invite a person, and print the link once",
		Long:    "Invite a person by e-mail address, and print the link. No mail is sent: pass the link\non. It works once, for seven days, for who signs in with that address.",
		Example: `  berth org invite grace@example.com --role admin`,
		Args:    wants(1, 1, "EMAIL"),
	}, func(ctx context.Context, c *api.Client, org string, args []string) error {
		i, err := c.InviteMember(ctx, org, api.Invite{Email: args[0], Role: new(api.Role(role))})
		if err != nil {
			return err
		}
		if a.json {
			return a.printJSON(i)
		}
		a.note("valid until %s; to accept it, signed in with a JWT of that address: berth org accept LINK", i.ExpiresAt)
		fmt.Fprintln(a.stdout, i.Link)
		return nil
	})
	cmd.Flags().StringVar(&role, "role", string(api.RoleMember), "owner, admin, member or viewer")
	return cmd
}

func (a *app) orgInvitations() *cobra.Command {
	var revoke string
	cmd := a.inOrg(&cobra.Command{
		Use: "invitations", Short: "List the open invitations, or withdraw one",
		Example: `  berth org invitations
  berth org invitations --revoke inv-c5x2n7w4k3q6z5t2m7jd`,
		Args: wants(0, 0, ""),
	}, func(ctx context.Context, c *api.Client, org string, _ []string) error {
		if revoke != "" {
			return c.RevokeInvitation(ctx, org, revoke)
		}
		all, err := everyPage(func(p api.Page) ([]api.Invitation, string, error) { return c.ListInvitations(ctx, org, p) })
		if err != nil {
			return err
		}
		if a.json {
			return a.printJSON(all)
		}
		rows := [][]string{{"ID", "EMAIL", "ROLE", "EXPIRES"}}
		for _, i := range all {
			rows = append(rows, []string{i.ID, i.Email, string(i.Role), i.ExpiresAt.String()})
		}
		return a.table(rows)
	})
	cmd.Flags().StringVar(&revoke, "revoke", "", "id of the invitation to withdraw")
	return cmd
}

func (a *app) orgAccept() *cobra.Command {
	return &cobra.Command{
		Use: "accept LINK", Short: "Accept an invitation, by its link or the link's last part",
		Example: `  berth org accept https://berth.example.com/v1/invitations/binv_x5n2w7jq4mz6t3c2y7b5r6d4s2f7h3gk`,
		Args:    wants(1, 1, "LINK"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client(envJWT)
			if err != nil {
				return err
			}
			o, err := c.AcceptInvitation(cmd.Context(), path.Base(args[0]))
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(o)
			}
			fmt.Fprintln(a.stdout, o.ID)
			a.note("you are %s of %s; to act in it: berth org use %s", o.Role, o.Name, o.ID)
			return nil
		},
	}
}

func (a *app) orgRole() *cobra.Command {
	return a.inOrg(&cobra.Command{
		Use: "role USER ROLE", Short: "Change a member's role: owner, admin, member or viewer",
		Example: `  berth org role usr-7b2kq4xm viewer`,
		Args:    wants(2, 2, "USER ROLE"),
	}, func(ctx context.Context, c *api.Client, org string, args []string) error {
		m, err := c.PatchMember(ctx, org, args[0], api.PatchMember{Role: api.Role(args[1])})
		if err == nil && a.json {
			return a.printJSON(m)
		}
		return err
	})
}

func (a *app) orgRemove() *cobra.Command {
	return a.inOrg(&cobra.Command{
		Use: "remove USER…", Short: "Remove members; your own id: leave",
		Example: `  berth org remove usr-7b2kq4xm`,
		Args:    wants(1, -1, "USER"),
	}, func(ctx context.Context, c *api.Client, org string, args []string) error {
		return a.removeEach(args, func(id string) error { return c.RemoveMember(ctx, org, id) })
	})
}

func (a *app) orgDelete() *cobra.Command {
	return &cobra.Command{
		Use: "rm ID…", Short: "Delete organizations that have nothing left",
		Example: `  berth org rm ws-q5t3nz7k`,
		Args:    wants(1, -1, "ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client(envJWT)
			if err != nil {
				return err
			}
			return a.removeEach(args, func(id string) error { return c.DeleteOrg(cmd.Context(), id) })
		},
	}
}

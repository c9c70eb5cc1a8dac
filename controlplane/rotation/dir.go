package rotation

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/berth-cloud/berth/controlplane/pki"
)

// Dir is the directory of a replica whose CA is shown or changed.
type Dir struct {
	Path  string
	Peers []string // host:port of peer ports where the cluster is asked; none: as the directory says

	// NoRenewal makes Use say that certificates of other CAs are not renewed.
	NoRenewal bool

	// Settled is Cluster.Settled, if it is not to be the default.
	Settled time.Duration
}

func (d *Dir) read() ([]pki.Authority, error) {
	if d.Path == "" {
		return nil, errors.New("which replica? Give --pki-dir, or set BERTH_PKI_DIR")
	}
	return pki.Authorities(d.Path)
}

// Ask asks all replicas.
func (d *Dir) Ask(ctx context.Context) (Cluster, error) {
	node, err := pki.LoadNode(d.Path)
	if err != nil {
		return Cluster{}, err
	}
	addresses := d.Peers
	if len(addresses) == 0 {
		about, err := pki.LoadReplica(d.Path)
		if err != nil {
			return Cluster{}, err
		}
		addresses = append(addresses, about.Address)
		for _, m := range about.Members {
			if m.Address != about.Address {
				addresses = append(addresses, m.Address)
			}
		}
	}
	cluster, err := Ask(ctx, node, addresses)
	if d.Settled > 0 {
		cluster.Settled = d.Settled
	}
	return cluster, err
}

// List writes which CAs there are, and who trusts which; to problems, why that is not known.
func (d *Dir) List(ctx context.Context, out, problems io.Writer) error {
	all, err := d.read()
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, a := range all {
		note := "trusted"
		if a.Signs {
			note = "signs"
		}
		if !a.Key {
			note += ", its key is not here"
		}
		fmt.Fprintf(w, "%s\tuntil %s\t%s\n", a.ID, a.NotAfter.UTC().Format(time.DateOnly), note)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	cluster, err := d.Ask(ctx)
	if err != nil {
		fmt.Fprintf(problems, "who trusts which is not known: %v\n", err)
		return nil
	}
	fmt.Fprintln(out)
	fmt.Fprintln(w, "MEMBER\tCERTIFICATE OF\tTRUSTS\t")
	for _, r := range cluster.Replicas {
		if r.Err != nil {
			fmt.Fprintf(w, "replica %s\t\t\tdoes not answer: %v\n", r.ID, r.Err)
			continue
		}
		fmt.Fprintf(w, "replica %s\t%s\t%s\tsigns with %s\n", r.ID, r.Issuer, strings.Join(r.Trusts, " "), r.Signs)
	}
	for _, m := range cluster.Members {
		if !m.Heard {
			fmt.Fprintf(w, "%s\t\t\thas told nothing\n", m.Name)
			continue
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s ago\n", m.Name, m.Issuer, strings.Join(m.Trusts, " "), m.Age.Round(time.Second))
	}
	return w.Flush()
}

// Add adds a CA that is trusted, and does not sign yet.
func (d *Dir) Add(out io.Writer) error {
	if _, err := d.read(); err != nil {
		return err
	}
	id, added, err := pki.AddAuthority(d.Path, time.Now())
	if err != nil {
		return err
	}
	said := "CA %s is added, and does not sign yet\n"
	if !added {
		said = "CA %s is there already, and does not sign yet\n"
	}
	fmt.Fprintf(out, said, id)
	d.copy(out, pki.FileCACert, pki.FileCAKey)
	return nil
}

// Use lets a CA sign, once everybody trusts it.
func (d *Dir) Use(ctx context.Context, out io.Writer, id string) error {
	_, a, err := d.find(id)
	switch {
	case err != nil:
		return err
	case a == nil:
		return fmt.Errorf("there is no CA %s in %s", id, d.Path)
	case !a.Signs:
		cluster, err := d.Ask(ctx)
		if err != nil {
			return fmt.Errorf("whether everybody trusts %s is not known: %w", id, err)
		}
		if err := notYet("CA "+id+" cannot sign yet", cluster.KeepsFromUsing(id)); err != nil {
			return err
		}
	}
	use, said := pki.UseAuthority, "CA %s signs from now on\n"
	if d.NoRenewal {
		use, said = pki.UseAuthorityAlone, "CA %s signs from now on, and certificates of other CAs are not renewed\n"
	}
	if _, err := use(d.Path, id); err != nil {
		return err
	}
	fmt.Fprintf(out, said, id)
	d.copy(out, pki.FileCAKey)
	return nil
}

// Remove removes a CA of which nobody has a certificate any more.
func (d *Dir) Remove(ctx context.Context, out io.Writer, id string) error {
	all, a, err := d.find(id)
	if err != nil {
		return err
	}
	said := "CA %s is removed\n"
	switch {
	case a == nil:
		said = "CA %s is not there, or not any more\n"
	case a.Signs:
		return fmt.Errorf("CA %s signs: let another one sign first (controlplane ca use)", id)
	default:
		cluster, err := d.Ask(ctx)
		if err != nil {
			return fmt.Errorf("who has a certificate of %s is not known: %w", id, err)
		}
		signs := ""
		for _, other := range all {
			if other.Signs {
				signs = other.ID
			}
		}
		if err := notYet("CA "+id+" is still needed", cluster.KeepsFromRemoving(id, signs)); err != nil {
			return err
		}
	}
	changed, err := pki.RemoveAuthority(d.Path, id)
	if err != nil {
		return err
	}
	if a == nil && changed {
		said = "CA %s is not there; keys of CAs that are gone were still there, and are removed\n"
	}
	fmt.Fprintf(out, said, id)
	d.copy(out, pki.FileCACert, pki.FileCAKey)
	return nil
}

var caID = regexp.MustCompile(`^[0-9a-f]{16}$`)

// find returns the CAs of the directory, and one of them; nil: it is not there.
func (d *Dir) find(id string) ([]pki.Authority, *pki.Authority, error) {
	if !caID.MatchString(id) {
		return nil, nil, fmt.Errorf("bad CA %q: want 16 hex digits, as controlplane ca ls shows them", id)
	}
	all, err := d.read()
	if err != nil {
		return nil, nil, err
	}
	for i := range all {
		if all[i].ID == id {
			return all, &all[i], nil
		}
	}
	return all, nil, nil
}

// copy says what is left to do.
func (d *Dir) copy(out io.Writer, names ...string) {
	var paths []string
	for _, n := range names {
		paths = append(paths, filepath.Join(d.Path, n))
	}
	fmt.Fprintf(out, "copy %s to every other replica\n", strings.Join(paths, " and "))
}

func notYet(what string, why []string) error {
	if len(why) == 0 {
		return nil
	}
	return fmt.Errorf("%s:\n  %s", what, strings.Join(why, "\n  "))
}

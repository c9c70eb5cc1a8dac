package identity

import (
	"fmt"
	"os"
	"strings"

	"github.com/berth-cloud/berth/guest/guestapi"
)

// runEtc holds the files of the identity. It is on a tmpfs: a full disk cannot
// stop them, and they never get into a template's image.
const (
	runEtc = guestapi.RunDir + "/etc/"
	etcDir = "/etc/"
	sshDir = "/etc/ssh/"
)

// linked are the files of /etc that are links into runEtc, with their content
// before the first identity.
var linked = []struct{ name, initial string }{
	{"hostname", "localhost\n"},
	{hosts, defaultHosts},
	{"machine-id", ""},
	{"resolv.conf", "nameserver " + guestapi.GatewayAddr + "\n"},
}

// keyTypes are the types of SSH host keys, as in their files' names.
var keyTypes = []string{"ed25519", "ecdsa", "rsa"}

// prepareFiles makes the links, once for a root file system, and the files, once
// for a boot. What /etc/hosts of the image says is kept.
func (g *Guest) prepareFiles() error {
	if err := os.MkdirAll(g.root+runEtc, 0o755); err != nil {
		return err
	}
	for _, l := range linked {
		content := l.initial
		if !g.isLinked(etcDir, l.name) {
			if old, err := g.readHosts(); err == nil && l.name == hosts && strings.TrimSpace(old) != "" {
				content = old
			}
			if err := g.link(etcDir, l.name); err != nil {
				return err
			}
		}
		if st, err := os.Stat(g.root + runEtc + l.name); err == nil && st.Size() > 0 {
			continue
		}
		if err := overwrite(g.root+runEtc+l.name, []byte(content), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func (g *Guest) writeNames(id *guestapi.Identity) error {
	if err := g.system.setHostname([]byte(id.Hostname)); err != nil {
		return fmt.Errorf("set the hostname: %w", err)
	}
	if err := g.place("hostname", id.Hostname+"\n"); err != nil {
		return err
	}
	old, err := g.readHosts()
	if err != nil {
		return err
	}
	if err := g.place(hosts, withoutOwn(old)+ownAddress+"\t"+id.Hostname+"\n"); err != nil {
		return err
	}
	if err := g.place("machine-id", id.MachineID+"\n"); err != nil {
		return err
	}
	if len(id.Nameservers) == 0 {
		return nil
	}
	return g.place("resolv.conf", "nameserver "+strings.Join(id.Nameservers, "\nnameserver ")+"\n")
}

// place puts content where programs look for it in /etc: in runEtc, and in the
// file itself where the workload has replaced the link by one.
func (g *Guest) place(name, content string) error {
	if err := overwrite(g.root+runEtc+name, []byte(content), 0o644); err != nil {
		return err
	}
	if g.isLinked(etcDir, name) {
		return nil
	}
	return WriteFile(g.root+etcDir+name, []byte(content), 0o644)
}

// writeHostKeys puts the host keys where sshd looks for them. It reads them when
// it starts; a template whose sshd runs when it is stored restarts it in a hook.
func (g *Guest) writeHostKeys(keys []guestapi.SSHHostKey) error {
	for _, k := range keys {
		name := "ssh_host_" + k.Type + "_key"
		if err := g.placeKey(name, k.Private, 0o600); err != nil {
			return err
		}
		if err := g.placeKey(name+".pub", k.Public, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// placeKey also makes the link: the host decides which types there are.
func (g *Guest) placeKey(name, content string, mode os.FileMode) error {
	if !strings.HasSuffix(content, "\n") {
		content += "\n"
	}
	if err := overwrite(g.root+runEtc+name, []byte(content), mode); err != nil {
		return err
	}
	if g.isLinked(sshDir, name) {
		return nil
	}
	return g.link(sshDir, name)
}

// isLinked says whether a name of dir is still the link to the file in runEtc.
func (g *Guest) isLinked(dir, name string) bool {
	target, err := os.Readlink(g.root + dir + name)
	return err == nil && target == g.root+runEtc+name
}

// link replaces a name of dir by the link to the file in runEtc.
func (g *Guest) link(dir, name string) error {
	if err := os.MkdirAll(g.root+dir, 0o755); err != nil {
		return err
	}
	path := g.root + dir + name
	temp := tempName(path)
	_ = os.Remove(temp)
	if err := os.Symlink(g.root+runEtc+name, temp); err != nil {
		return err
	}
	return os.Rename(temp, path)
}

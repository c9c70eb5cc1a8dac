package stack

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestStacksOfDifferentRangesShareNothing(t *testing.T) {
	type owner struct{ hostRange, host int }
	cidrs, uids := map[string]owner{}, map[int]owner{}
	for hostRange := range 8 {
		o := Options{HostRange: hostRange}
		for host := range 8 {
			me := owner{hostRange, host}
			cidr, uid := o.slotCIDR(host), o.baseUID(host)
			if cidr != cidr.Masked() {
				t.Errorf("%v: %s has host bits", me, cidr)
			}
			if other, taken := cidrs[cidr.String()]; taken {
				t.Errorf("%v and %v share %s", me, other, cidr)
			}
			if other, taken := uids[uid]; taken {
				t.Errorf("%v and %v share uid %d", me, other, uid)
			}
			cidrs[cidr.String()], uids[uid] = me, me
		}
	}
}

// The client's module is inside the clone and has a go.mod too.
func TestFindRootFromTheClientsModule(t *testing.T) {
	t.Chdir("../../../controlplane/api")
	root, err := FindRoot()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(root, "Makefile")); err != nil {
		t.Error(err)
	}
}

func TestBadPortBase(t *testing.T) {
	for _, bad := range []string{"x", "0", "-1", "70000", "65530"} {
		t.Setenv("BERTH_PORT_BASE", bad)
		if _, err := (Options{Root: t.TempDir()}).withDefaults(); err == nil || !strings.Contains(err.Error(), bad) {
			t.Errorf("BERTH_PORT_BASE=%s: got %v", bad, err)
		}
	}
}

// A balancer can be tried out in front of the stack, and what takes days in minutes.
func TestReplicasHaveTheSettingsOfTheDeveloper(t *testing.T) {
	settings := []string{
		"BERTH_TRUSTED_PROXIES=127.0.0.0/8", "BERTH_EVENT_RETENTION=1h", "BERTH_KEPT_GRACE=1m", "BERTH_VOLUME_QUOTA_MB=512",
		"BERTH_WEBHOOK_TIMEOUT=2s", "BERTH_WEBHOOK_MAX_ENDPOINTS=2",
	}
	for _, kv := range settings {
		name, value, _ := strings.Cut(kv, "=")
		t.Setenv(name, value)
	}
	o, err := Options{Root: t.TempDir()}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	env := o.replicaEnv(0, secrets{})
	for _, want := range settings {
		if !slices.Contains(env, want) {
			t.Errorf("no %s in %q", want, env)
		}
	}
}

// A phone in the same network has to resolve a preview's name, and to reach its address.
func TestPreviewsAreWhereTheDeveloperWantsThem(t *testing.T) {
	for name, c := range map[string]struct {
		address, domain string
		want            []string
	}{
		"by default": {"", "", []string{
			"BERTH_LISTEN=127.0.0.1:7602", "BERTH_PREVIEW_SUFFIX=preview.localhost", "BERTH_PREVIEW_URL=http://{port}-{id}.preview.localhost:7602",
			"BERTH_APP_SUFFIX=app.localhost", "BERTH_APP_URL=http://{id}.app.localhost:7602/",
		}},
		"at an address": {"127.1.2.3", "", []string{
			"BERTH_LISTEN=127.1.2.3:7602", "BERTH_PREVIEW_SUFFIX=preview.127-1-2-3.nip.io", "BERTH_PREVIEW_URL=http://{port}-{id}.preview.127-1-2-3.nip.io:7602",
			"BERTH_APP_SUFFIX=app.127-1-2-3.nip.io", "BERTH_PEER_LISTEN=127.0.0.1:7612",
		}},
		"under a domain": {"", "dev.example.com", []string{
			"BERTH_LISTEN=127.0.0.1:7602", "BERTH_PREVIEW_SUFFIX=preview.dev.example.com", "BERTH_APP_SUFFIX=app.dev.example.com",
		}},
	} {
		o, err := Options{Root: t.TempDir(), PortBase: 7600, Address: c.address, Domain: c.domain}.withDefaults()
		if err != nil {
			t.Fatal(err)
		}
		env := o.replicaEnv(1, secrets{})
		for _, want := range c.want {
			if !slices.Contains(env, want) {
				t.Errorf("%s: no %s in %q", name, want, env)
			}
		}
	}
}

func TestBadAddress(t *testing.T) {
	for _, bad := range []string{"x", "0.0.0.0", "::1", "192.0.2.1", "127.0.0.1:80", "localhost"} {
		if _, err := (Options{Root: t.TempDir(), Address: bad}).withDefaults(); err == nil || !strings.Contains(err.Error(), bad) {
			t.Errorf("%s: got %v", bad, err)
		}
	}
}

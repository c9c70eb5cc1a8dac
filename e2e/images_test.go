package e2e

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/berth-cloud/berth/controlplane/api"
)

// allowedRegistries is the one private address that tenants' images may come
// from in this stack.
const allowedRegistries = "127.0.0.1"

func TestTemplateFromAnImage(t *testing.T) {
	t.Parallel()
	c := newTenant(t)
	c.knownEverywhere(t)
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	host := strings.TrimPrefix(server.URL, "http://")
	nonce := rand.Text() // nothing of it was built before
	pushImage(t, host+"/team/tiny:v1", v1.Config{Env: []string{"COLOUR=blue", "SHAPE=round"}, Entrypoint: []string{"/bin/false"}},
		machineLayer(t, "sh", "cat"),
		layerOf(t, map[string]string{"etc/passwd": "root:x:0:0::/root:/bin/sh\n", "srv/below": "below\n", "srv/old": "old\n", "opt/all/of": "it\n"}),
		layerOf(t, map[string]string{"srv/app": nonce + "\n", "srv/.wh.old": "", "opt/all/.wh..wh..opq": "", "opt/all/new": "new\n"}),
	)
	in := api.BuildTemplate{
		Name: "tiny", From: host + "/team/tiny:v1", Env: api.StringMap{"COLOUR": "green"}, MemoryMB: new(256), DiskMB: new(256),
		Files: api.StringMap{"/usr/local/bin/hello": "#!/bin/sh\necho hello\n"},
		Run:   []string{"read -r id < /srv/app; echo step of $id; echo $id, $COLOUR and $SHAPE > /srv/made"},
	}
	first, said := c.builds(t, in, "step of "+nonce)
	if first.Status != api.TemplateReady || first.Error != nil || first.FinishedAt == nil {
		t.Fatalf("it ended as %+v:\n%s", first, strings.Join(said, "\n"))
	}
	s := c.make(t, api.CreateSandbox{Template: "tiny"})
	for line, want := range map[string]string{
		"cat /srv/app":                  nonce,
		"cat /srv/made":                 nonce + ", green and round",
		"cat /srv/below":                "below",
		"echo $COLOUR $SHAPE":           "green round",
		"/usr/local/bin/hello":          "hello",
		"test -e /srv/old || echo gone": "gone",
		"echo /opt/all/*":               "/opt/all/new",
	} {
		if got := c.run(t, s.ID, line); got != want {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}

	// What fails leaves what was built in its place, and says why.
	builds := []string{first.ID}
	_, port, _ := strings.Cut(host, ":")
	for _, bad := range []struct {
		name, from string
		words      []string
	}{
		{"no such image", host + "/team/none:v1", []string{"/team/none:v1", "NAME_UNKNOWN"}},
		{"no such tag", host + "/team/tiny:v2", []string{"/team/tiny:v2", "MANIFEST_UNKNOWN"}},
		{"no such digest", host + "/team/tiny@sha256:" + strings.Repeat("0", 64), []string{"/team/tiny@sha256:0", "MANIFEST_UNKNOWN"}},
		{"a registry that is not allowed", "localhost:" + port + "/team/tiny:v1", []string{"registry not allowed", "BERTH_OCI_ALLOW"}},
	} {
		t.Run(bad.name, func(t *testing.T) {
			in := in
			in.From = bad.from
			b, said := c.builds(t, in, "")
			builds = append(builds, b.ID)
			if b.Status != api.TemplateFailed || b.Error == nil || b.FinishedAt == nil {
				t.Fatalf("it ended as %+v:\n%s", b, strings.Join(said, "\n"))
			}
			for _, word := range bad.words {
				if !strings.Contains(*b.Error, word) {
					t.Errorf("its error %q lacks %q", *b.Error, word)
				}
				if last := said[len(said)-1]; !strings.HasPrefix(last, "==> failed: ") || !strings.Contains(last, word) {
					t.Errorf("its log ends with %q, which lacks %q", last, word)
				}
			}
			tpl, err := c.GetTemplate(t.Context(), "tiny")
			if err != nil || tpl.Status != api.TemplateReady || tpl.BuildID != first.ID {
				t.Errorf("the template is %+v, %v; want it to have build %s", tpl, err, first.ID)
			}
		})
	}
	var listed []string
	for b, err := range c.Builds(t.Context(), "tiny") {
		if err != nil {
			t.Fatal(err)
		}
		listed = append(listed, b.ID)
	}
	if slices.Reverse(builds); !slices.Equal(listed, builds) {
		t.Errorf("listed are the builds %v, want %v", listed, builds)
	}
	if got := c.run(t, c.make(t, api.CreateSandbox{Template: "tiny"}).ID, "cat /srv/app"); got != nonce {
		t.Errorf("a sandbox of the build that was left reads %q", got)
	}
	c.forgets(t, "tiny")
}

// builds has a template built and reads the log of the build to its end, by way
// of a replica that does not lead. The build must still be under way when the
// log has the line; line "" is none.
func (c *tenant) builds(t *testing.T, in api.BuildTemplate, line string) (*api.Build, []string) {
	t.Helper()
	b, err := c.BuildTemplate(t.Context(), in, "")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	var said []string
	live := line == ""
	end, err := c.through(t, followerIndex(t)).FollowBuild(ctx, b.ID, func(l api.BuildLog) error {
		said = append(said, l.Line)
		if l.Line != line || live {
			return nil
		}
		now, err := c.GetBuild(ctx, b.ID)
		live = err == nil && now.Status == api.TemplateBuilding
		return err
	})
	if err != nil {
		t.Fatalf("follow the build: %v; its log so far:\n%s", err, strings.Join(said, "\n"))
	}
	if !live {
		t.Errorf("the log has not told of %q while it was built:\n%s", line, strings.Join(said, "\n"))
	}
	if b, err = c.GetBuild(t.Context(), b.ID); err != nil {
		t.Fatal(err)
	}
	if end.Status != b.Status || (end.Error == nil) != (b.Error == nil) {
		t.Errorf("the log's end is %+v, and the build is %+v", end, b)
	}
	return b, said
}

// forgets deletes a template with all sandboxes of the tenant, and waits until
// no host has it.
func (c *tenant) forgets(t *testing.T, template string) {
	t.Helper()
	refusal(t, c.DeleteTemplate(t.Context(), template), 409, "template in use")
	for s, err := range c.Sandboxes(t.Context()) {
		if err == nil {
			err = c.DeleteSandbox(t.Context(), s.ID)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := c.DeleteTemplate(t.Context(), template); err != nil {
		t.Fatal(err)
	}
	_, err := c.CreateSandbox(t.Context(), api.CreateSandbox{Template: template}, "")
	refusal(t, err, 400, "unknown template")
	operator := admin(t)
	eventually(t, 30*time.Second, "the hosts have forgotten the template", func(ctx context.Context) error {
		agents, _, err := operator.ListAgents(ctx, api.Page{})
		for _, a := range agents {
			for _, has := range a.Templates {
				if strings.HasSuffix(has.Name, "."+template) {
					err = errors.New(a.ID + " has " + has.Name)
				}
			}
		}
		return err
	})
}

// pushImage puts an image for guests into a registry.
func pushImage(t *testing.T, reference string, config v1.Config, layers ...v1.Layer) {
	t.Helper()
	img, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{OS: "linux", Architecture: "amd64", Config: config})
	if err == nil {
		img, err = mutate.AppendLayers(img, layers...)
	}
	if err != nil {
		t.Fatal(err)
	}
	ref, err := name.ParseReference(reference)
	if err == nil {
		err = remote.Write(ref, img)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// layerOf is a layer of small files, packed as registries have it.
func layerOf(t *testing.T, files map[string]string) v1.Layer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for at, content := range files {
		mode := int64(0o644)
		if strings.HasPrefix(content, "\x7fELF") {
			mode = 0o755
		}
		if err := w.WriteHeader(&tar.Header{Name: at, Mode: mode, Size: int64(len(content))}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil })
	if err != nil {
		t.Fatal(err)
	}
	return layer
}

var libraryPath = regexp.MustCompile(`/\S+\.so\S*`)

// machineLayer has programs of this machine in /bin, and the libraries that they
// load: an image is fetched from nowhere.
func machineLayer(t *testing.T, programs ...string) v1.Layer {
	t.Helper()
	files := map[string]string{}
	read := func(from, to string) {
		raw, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		files[strings.TrimPrefix(to, "/")] = string(raw)
	}
	for _, program := range programs {
		found, err := exec.LookPath(program)
		if err != nil {
			t.Fatal(err)
		}
		read(found, path.Join("/bin", program))
		libraries, err := exec.CommandContext(t.Context(), "ldd", found).Output()
		if err != nil {
			t.Fatalf("ldd %s: %v", found, err)
		}
		for _, library := range libraryPath.FindAllString(string(libraries), -1) {
			read(library, library)
		}
	}
	return layerOf(t, files)
}

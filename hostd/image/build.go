package image

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/berth-cloud/berth/guest/guestapi"
	"github.com/berth-cloud/berth/guest/guestclient"
	"github.com/berth-cloud/berth/hostd/image/initramfs"
	"github.com/berth-cloud/berth/hostd/image/kernel"
	"github.com/berth-cloud/berth/timescale"
)

// stepTime limits one step of run.
var stepTime = timescale.Limit(time.Hour)

// Options say how a definition is built.
type Options struct {
	// Workspace owns the definition; empty: the host's operator. For a workspace,
	// the host fetches no image from private networks or with its own credentials,
	// and its steps share no layer with others.
	Workspace string
	By        string // recorded with the name: for whom it was built; empty: by hand
	Progress  func(Progress)
	// Room, if not nil, refuses if so many bytes more have no room on the store's disk.
	// It is asked before an image is unpacked, whose size is its author's choice, and
	// during that.
	Room func(bytes int64) error
	// Admit is called once, before the first guest is booted, and may refuse it.
	Admit func(Guest) (release func(), err error)
}

// errWorkspacePrograms refuses definitions that would give a host's files to a
// tenant.
var errWorkspacePrograms = fmt.Errorf("%w: programs are for the operator's templates alone", ErrInvalid)

// Ensure is EnsureWith for the host's operator.
func (s *Store) Ensure(ctx context.Context, d Definition, progress func(Progress)) (Template, error) {
	return s.EnsureWith(ctx, d, Options{Progress: progress})
}

// EnsureWith returns the build of a definition, and creates what is missing: layers,
// initramfs, stored state. Then it makes the name mean that build. If the build
// fails or is cancelled, the name keeps its old build.
func (s *Store) EnsureWith(ctx context.Context, d Definition, o Options) (Template, error) {
	if _, inherits := d.fromTemplate(); !inherits {
		d.setDefaults()
	}
	d.setReadyDefaults()
	if err := d.Validate(); err != nil {
		return Template{}, err
	}
	if o.Workspace != "" && len(d.Programs) > 0 {
		return Template{}, errWorkspacePrograms
	}
	r := newReporter(d.Name, o.Progress)
	t, err := s.ensure(ctx, d, o, r)
	if err != nil {
		return Template{}, &BuildError{Template: d.Name, Err: err}
	}
	r.step(StepDone, 1, t.BuildID)
	return t, nil
}

// BuildError is the error of a build.
type BuildError struct {
	Template string // name on this host
	Err      error
}

func (e *BuildError) Error() string { return "build template " + e.Template + ": " + e.Err.Error() }

// Unwrap returns the cause.
func (e *BuildError) Unwrap() error { return e.Err }

// buildInputs are the recipe of a build.
type buildInputs struct {
	Format     int          `json:"format"`
	Definition Definition   `json:"definition"` // without what the layers contain
	Layers     []layerInput `json:"layers"`
	Initramfs  string       `json:"initramfs"`
	Kernel     string       `json:"kernel"`
	Engine     engineID     `json:"engine"`
	Cmdline    string       `json:"cmdline"`
}

type layerInput struct {
	Key    string `json:"key"`
	SHA256 string `json:"sha256"`
}

func (s *Store) ensure(ctx context.Context, d Definition, o Options, r *reporter) (Template, error) {
	kernel, err := s.ensureKernel(ctx)
	if err != nil {
		return Template{}, err
	}
	release := func() {}
	defer func() { release() }()
	if admit := o.Admit; admit != nil {
		o.Admit = func(g Guest) (func(), error) {
			give, err := admit(g)
			if err == nil {
				release = give
			}
			return give, err
		}
	}
	layers, err := s.ensureLayers(ctx, &d, o, r)
	if err != nil {
		return Template{}, err
	}
	ramdisk, err := s.initramfs(kernel, guestapi.BootSpec{Template: d.Name, Env: d.Env, Start: d.Start})
	if err != nil {
		return Template{}, err
	}
	inputs := buildInputs{
		Format: buildRecipe, Definition: d, Initramfs: ramdisk.digest, Kernel: kernel.SHA256,
		Engine: s.engine(), Cmdline: cmdline,
	}
	inputs.Definition.From, inputs.Definition.Bootstrap = "", nil
	inputs.Definition.Run, inputs.Definition.Files, inputs.Definition.Programs = nil, nil, nil
	for _, key := range layers {
		l, err := s.readLayer(key)
		if err != nil {
			return Template{}, err
		}
		inputs.Layers = append(inputs.Layers, layerInput{key, l.SHA256})
	}
	m := manifest{
		Format: formatVersion, Definition: d, Engine: s.engine(), Kernel: kernel, Layers: layers, CreatedAt: time.Now().UTC(),
	}
	t, err := s.ensureBuild(ctx, inputs, m, ramdisk, r)
	if err != nil {
		return Template{}, err
	}
	return t, s.Point(ctx, d.Name, t.BuildID, o.By)
}

// ensureBuild returns a usable build from these inputs, and creates one if there is
// none.
func (s *Store) ensureBuild(ctx context.Context, inputs buildInputs, m manifest, ramdisk ramdisk, r *reporter) (Template, error) {
	recipe, err := digest(inputs)
	if err != nil {
		return Template{}, err
	}
	unlock, err := s.lock(ctx, "recipe-"+recipe)
	if err != nil {
		return Template{}, err
	}
	defer unlock()
	if id := s.made(recipe).Build; id != "" {
		t, err := s.load(id)
		if err == nil {
			return t, nil
		}
		s.log.Warn("stored build is not usable and is made anew", "template", m.Definition.Name, "build_id", id, "error", err)
	}
	id, err := s.buildState(ctx, m, ramdisk, r)
	if err != nil {
		return Template{}, err
	}
	t, err := s.load(id)
	if err != nil {
		return Template{}, err
	}
	return t, s.note(recipe, madeRecord{Build: id})
}

// Point makes a name mean a build.
func (s *Store) Point(ctx context.Context, name, id, by string) error {
	unlock, err := s.lock(ctx, "name-"+name)
	if err != nil {
		return err
	}
	defer unlock()
	rec, err := s.readName(name)
	if err == nil && rec.BuildID == id && (rec.By == by || by == "") {
		return nil
	}
	if err == nil && rec.BuildID != id {
		// From now on the old build is unused; see olderThan. It may be gone
		// already.
		now := time.Now()
		_ = os.Chtimes(s.path(buildsDir, rec.BuildID), now, now)
	}
	return marshalFile(s.path(namesDir, name+".json"), nameRecord{BuildID: id, By: by, UpdatedAt: time.Now().UTC()})
}

// ensureKernel copies the kernel into the store, so that builds still work when the
// original is replaced.
func (s *Store) ensureKernel(ctx context.Context) (kernelID, error) {
	var k kernelID
	f, err := os.Open(s.cfg.Kernel)
	if err != nil {
		return k, fmt.Errorf("kernel: %w", err)
	}
	defer f.Close()
	if err := kernel.CheckPVH(f); err != nil {
		return k, fmt.Errorf("kernel %s: %w", s.cfg.Kernel, err)
	}
	if k.Release, err = kernel.Release(s.cfg.Kernel); err != nil {
		return k, fmt.Errorf("kernel: %w", err)
	}
	if k.fileID, err = identify(ctx, s.cfg.Kernel, false); err != nil {
		return k, fmt.Errorf("kernel: %w", err)
	}
	to := s.path(kernelsDir, k.SHA256)
	if st, err := os.Stat(filepath.Join(to, "vmlinux")); err == nil && st.Size() == k.Size {
		return k, nil
	}
	unlock, err := s.lock(ctx, "kernel-"+k.SHA256)
	if err != nil {
		return k, err
	}
	defer unlock()
	dir, remove, err := s.workDir(ctx)
	if err != nil {
		return k, err
	}
	defer remove()
	done := filepath.Join(dir, "kernel")
	if err := os.Mkdir(done, 0o755); err != nil {
		return k, err
	}
	if err := CloneOverlay(s.cfg.Kernel, filepath.Join(done, "vmlinux")); err != nil {
		return k, fmt.Errorf("kernel: %w", err)
	}
	if _, err := s.seal(ctx, filepath.Join(done, "vmlinux"), false); err != nil {
		return k, err
	}
	return k, s.publish(done, to)
}

// ramdisk is an initramfs in memory.
type ramdisk struct {
	data   []byte
	digest string
}

func (s *Store) initramfs(k kernelID, spec guestapi.BootSpec) (ramdisk, error) {
	data, err := initramfs.Bytes(initramfs.Config{Guestd: s.cfg.Guestd, Kernel: s.cfg.Kernel, Release: k.Release, Spec: spec})
	if err != nil {
		return ramdisk{}, err
	}
	sum, err := digest(data)
	return ramdisk{data, sum}, err
}

// stepLayer creates a layer by running a definition's steps in a guest.
func (s *Store) stepLayer(ctx context.Context, d Definition, below []string, dir, image string, r *reporter) error {
	kernel, err := s.ensureKernel(ctx)
	if err != nil {
		return err
	}
	ramdisk, err := s.initramfs(kernel, guestapi.BootSpec{Template: d.Name, Env: d.Env})
	if err != nil {
		return err
	}
	t := s.guestOf(d, kernel, below)
	t.Initramfs = filepath.Join(dir, initramfsFile)
	if err := os.WriteFile(t.Initramfs, ramdisk.data, 0o644); err != nil {
		return err
	}
	vm := VM{Overlay: filepath.Join(dir, overlayFile), RAM: filepath.Join(dir, ramFile)}
	if err := makeOverlay(ctx, vm.Overlay, d.DiskMB); err != nil {
		return err
	}
	if err := sparse(vm.RAM, int64(d.MemoryMB)<<20); err != nil {
		return err
	}
	r.step(StepRun, 0, "boot")
	b, err := s.bootVM(ctx, dir, t, vm)
	if err != nil {
		return err
	}
	defer b.kill()
	if err := b.alive(ctx, func(ctx context.Context) error { return s.steps(ctx, b, d, r) }); err != nil {
		return err
	}
	if err := b.stop(ctx); err != nil {
		return err
	}
	return os.Rename(vm.Overlay, image)
}

func (s *Store) steps(ctx context.Context, b *buildVM, d Definition, r *reporter) error {
	if err := b.identity(ctx, d.Name, d.Env); err != nil {
		return err
	}
	for _, path := range slices.Sorted(maps.Keys(d.Files)) {
		r.step(StepRun, 0, path)
		if err := b.guest.PutFile(ctx, path, uint32(fileMode(d.Files[path])), []byte(d.Files[path])); err != nil {
			return fmt.Errorf("file %s: %w", path, err)
		}
	}
	for _, path := range slices.Sorted(maps.Keys(d.Programs)) {
		r.step(StepRun, 0, path)
		if err := s.putProgram(ctx, b.guest, path, d.Programs[path]); err != nil {
			return fmt.Errorf("program %s: %w", path, err)
		}
	}
	for i, line := range d.Run {
		part := float64(i) / float64(len(d.Run))
		r.step(StepRun, part, line)
		err := b.run(ctx, []string{"/bin/sh", "-c", line}, stepTime, func(out string) { r.output(StepRun, part, out) })
		if err != nil {
			return fmt.Errorf("run[%d] %q: %w", i, line, err)
		}
	}
	if len(d.Run) == 0 {
		return nil // there may be no shell
	}
	return forgetHostKeys(ctx, b.guest)
}

// forgetHostKeys removes the host keys that a package has generated, because every
// sandbox would have the same. It uses the agent, because an image may not have rm.
func forgetHostKeys(ctx context.Context, guest *guestclient.Client) error {
	const dir = "/etc/ssh"
	list, err := guest.ReadDir(ctx, dir)
	var refusal *guestclient.Error
	switch {
	case errors.As(err, &refusal) && (refusal.Status == http.StatusNotFound || refusal.Status == http.StatusBadRequest):
		return nil // it does not exist, or is not a directory
	case err != nil:
		return fmt.Errorf("look for SSH host keys: %w", err)
	}
	for _, entry := range list.Entries {
		if !strings.HasPrefix(entry.Name, "ssh_host_") || !strings.HasSuffix(strings.TrimSuffix(entry.Name, ".pub"), "_key") {
			continue
		}
		if err := guest.Remove(ctx, dir+"/"+entry.Name, false); err != nil {
			return fmt.Errorf("remove an SSH host key: %w", err)
		}
	}
	return nil
}

// guestOf returns a template that is not stored yet, with enough of it to boot.
func (s *Store) guestOf(d Definition, k kernelID, layers []string) Template {
	t := Template{
		Name: d.Name, CPU: d.CPU, MemoryMB: d.MemoryMB, DiskMB: d.DiskMB,
		Kernel: s.path(kernelsDir, k.SHA256, "vmlinux"),
	}
	for _, key := range layers {
		t.Layers = append(t.Layers, s.layerPath(key))
	}
	return t
}

var errNotReady = errors.New("the template is not ready")

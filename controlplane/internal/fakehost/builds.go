package fakehost

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/berth-cloud/berth/hostd/hostapi"
)

// builds are the template builds that the host was asked for.
type builds struct {
	made  map[string]hostapi.Build
	specs map[string]hostapi.BuildSpec
	asked []hostapi.BuildSpec
	make  func(id string, spec hostapi.BuildSpec) hostapi.Build
	say   func(line func(string)) (whole bool)
}

// SetBuild sets how builds progress. f is called whenever a build that has not ended
// is polled. By default builds succeed at the first poll.
func (h *Host) SetBuild(f func(id string, spec hostapi.BuildSpec) hostapi.Build) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.builds.make = f
}

// SetBuildLog sets what a client that follows a build's log is sent. If f returns
// false, the connection breaks; before the first line, this is as if the host did not
// answer.
func (h *Host) SetBuildLog(f func(line func(string)) (whole bool)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.builds.say = f
}

// SetSources sets the definitions that the host can build by itself.
func (h *Host) SetSources(sources ...hostapi.TemplateSource) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sources = sources
	h.announce()
}

// StoreTemplates uploads the host's templates to its snapshot store.
func (h *Host) StoreTemplates() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.templates = slices.Clone(h.templates)
	for i, t := range h.templates {
		h.objects.store.put(hostapi.Capture{ID: hostapi.StoredBuild(t.BuildID)})
		h.templates[i].Stored = true
	}
	h.announce()
}

// Builds returns the builds that the host was asked for, by id.
func (h *Host) Builds() map[string]hostapi.BuildSpec {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := map[string]hostapi.BuildSpec{}
	for id, spec := range h.builds.specs {
		out[id] = spec
	}
	return out
}

// AskedToFetch reports whether the host was ever asked to fetch a digest from its
// snapshot store.
func (h *Host) AskedToFetch(digest string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.ContainsFunc(h.builds.asked, func(s hostapi.BuildSpec) bool { return s.Fetch == digest })
}

// build answers a call about a build or a template; the lock is held.
func (h *Host) build(r *http.Request, c Call) (any, error) {
	b := &h.builds
	if b.made == nil {
		b.made, b.specs = map[string]hostapi.Build{}, map[string]hostapi.BuildSpec{}
	}
	switch c.Op {
	case "build":
		if got, ok := b.made[c.ID]; ok && !got.Interrupted && !got.Refused && !got.Missing {
			return got, nil
		}
		var spec hostapi.BuildSpec
		if err := json.NewDecoder(r.Body).Decode(&spec); err != nil {
			return nil, &hostapi.Error{Code: hostapi.CodeInvalid, Message: err.Error()}
		}
		b.specs[c.ID] = spec
		b.asked = append(b.asked, spec)
		b.made[c.ID] = hostapi.Build{ID: c.ID, Template: spec.Template, Status: hostapi.BuildBuilding, CreatedAt: time.Now()}
		if spec.Fetch != "" { // nobody polls a fetch
			b.made[c.ID] = h.progress(b.made[c.ID], spec)
		}
		return b.made[c.ID], nil
	case "getbuild":
		got, ok := b.made[c.ID]
		if !ok {
			return nil, &hostapi.Error{Code: hostapi.CodeNotFound, Message: "no such build"}
		}
		if got.FinishedAt.IsZero() {
			got = h.progress(got, b.specs[c.ID])
			b.made[c.ID] = got
		}
		return got, nil
	case "unbuild":
		delete(b.made, c.ID)
	case "untemplate":
		h.templates = slices.DeleteFunc(h.templates, func(t hostapi.TemplateState) bool { return t.Name == c.ID })
		h.announce()
	}
	return nil, nil
}

// progress advances a build.
func (h *Host) progress(b hostapi.Build, spec hostapi.BuildSpec) hostapi.Build {
	created := b.CreatedAt
	if _, there := h.objects.store.get(hostapi.StoredBuild(spec.Fetch)); spec.Fetch != "" && !there {
		b.Status, b.Missing = hostapi.BuildFailed, true
	} else if spec.Fetch != "" {
		b.Status, b.BuildID, b.CPU, b.MemoryMB, b.DiskMB, b.SizeBytes = hostapi.BuildSucceeded, spec.Fetch, 2, 768, 4096, 1<<20
	} else if h.builds.make != nil {
		b = h.builds.make(b.ID, spec)
	} else {
		b.Status, b.BuildID, b.CPU, b.MemoryMB, b.DiskMB, b.SizeBytes = hostapi.BuildSucceeded, "built-"+b.ID, 2, 768, 4096, 1<<20
	}
	b.CreatedAt, b.Template = created, spec.Template
	if b.Status == hostapi.BuildSucceeded || b.Status == hostapi.BuildFailed {
		b.FinishedAt = time.Now()
	}
	if b.Status == hostapi.BuildSucceeded {
		h.templates = slices.DeleteFunc(slices.Clone(h.templates), func(t hostapi.TemplateState) bool { return t.Name == spec.Template })
		h.templates = append(h.templates, hostapi.TemplateState{
			Name: spec.Template, BuildID: b.BuildID, Build: b.ID, Status: "ready", CPU: b.CPU, MemoryMB: b.MemoryMB, DiskMB: b.DiskMB,
		})
		h.announce()
	}
	return b
}

// serveBuildLog sends one line, and ends when the build has ended, unless SetBuildLog
// says otherwise.
func (h *Host) serveBuildLog(w http.ResponseWriter, r *http.Request, c Call) {
	h.mu.Lock()
	b, ok := h.builds.made[c.ID]
	say := h.builds.say
	h.mu.Unlock()
	if !ok {
		reply(w, nil, &hostapi.Error{Code: hostapi.CodeNotFound, Message: "no such build"})
		return
	}
	line := "==> build " + c.ID
	if r.URL.Query().Get("follow") == "" {
		_, _ = io.WriteString(w, line+"\n")
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	send := func(line string) {
		raw, _ := json.Marshal(hostapi.LogLine{Stream: "build", Line: line})
		_, _ = fmt.Fprintf(w, "event: log\ndata: %s\n\n", raw)
		_ = http.NewResponseController(w).Flush()
	}
	if say != nil {
		if !say(send) {
			panic(http.ErrAbortHandler)
		}
		return
	}
	send(line)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for b.FinishedAt.IsZero() {
		select {
		case <-r.Context().Done():
			return
		case <-tick.C:
		}
		h.mu.Lock()
		b = h.builds.made[c.ID]
		h.mu.Unlock()
	}
}

package record

// The tables, and every index by which their rows are found.
var (
	Clusters = Table[*Cluster]{Name: "cluster", New: func() *Cluster { return &Cluster{} }}

	Workspaces = Table[*Workspace]{Name: "workspaces", New: func() *Workspace { return &Workspace{} }}

	Users = Table[*User]{Name: "users", New: func() *User { return &User{} }}

	APIKeys = Table[*APIKey]{
		Name: "api_keys",
		New:  func() *APIKey { return &APIKey{} },
		Indexes: []Index[*APIKey]{
			{Name: "prefix", Unique: true, Keys: func(k *APIKey) []string { return []string{k.Prefix} }},
			{Name: "workspace", Keys: func(k *APIKey) []string { return []string{k.WorkspaceID} }},
		},
	}

	Hosts = Table[*Host]{
		Name:  "agents",
		New:   func() *Host { return &Host{} },
		Check: checked(hostTransitions, func(r *Host) HostState { return r.State }),
	}

	JoinTokens = Table[*JoinToken]{Name: "join_tokens", New: func() *JoinToken { return &JoinToken{} }}

	Sandboxes = Table[*Sandbox]{
		Name:  "sandboxes",
		New:   func() *Sandbox { return &Sandbox{} },
		Check: checked(sandboxTransitions, func(r *Sandbox) SandboxStatus { return r.Status }),
		Indexes: []Index[*Sandbox]{
			{Name: "workspace", Keys: func(s *Sandbox) []string { return []string{s.WorkspaceID} }},
			{Name: "agent", Keys: func(s *Sandbox) []string { return optional(s.HostID) }},
			{Name: "fork_tree", Keys: func(s *Sandbox) []string { return optional(s.ForkTree) }},
		},
	}

	Snapshots = Table[*Snapshot]{
		Name:  "snapshots",
		New:   func() *Snapshot { return &Snapshot{} },
		Check: checked(snapshotTransitions, func(r *Snapshot) ResourceStatus { return r.Status }),
		Indexes: []Index[*Snapshot]{
			{Name: "workspace", Keys: func(s *Snapshot) []string { return []string{s.WorkspaceID} }},
			{Name: "agent", Keys: func(s *Snapshot) []string { return []string{s.HostID} }},
		},
	}

	// A volume's name is its workspace's own, so a unique index keeps it.
	Volumes = Table[*Volume]{
		Name:  "volumes",
		New:   func() *Volume { return &Volume{} },
		Check: checked(volumeTransitions, func(r *Volume) ResourceStatus { return r.Status }),
		Indexes: []Index[*Volume]{
			{Name: "name", Unique: true, Keys: func(v *Volume) []string { return []string{v.WorkspaceID + "/" + v.Name} }},
			{Name: "workspace", Keys: func(v *Volume) []string { return []string{v.WorkspaceID} }},
			{Name: "agent", Keys: func(v *Volume) []string { return optional(v.HostID) }},
		},
	}

	Templates = Table[*Template]{
		Name:  "templates",
		New:   func() *Template { return &Template{} },
		Check: checked(templateTransitions, func(r *Template) TemplateStatus { return r.Status }),
		Indexes: []Index[*Template]{
			{Name: "name", Unique: true, Keys: func(t *Template) []string { return []string{t.WorkspaceID + "/" + t.Name} }},
			{Name: "workspace", Keys: func(t *Template) []string { return []string{t.WorkspaceID} }},
		},
	}

	Builds = Table[*Build]{
		Name:  "builds",
		New:   func() *Build { return &Build{} },
		Check: checked(buildTransitions, func(r *Build) TemplateStatus { return r.Status }),
		Indexes: []Index[*Build]{
			{Name: "template", Keys: func(b *Build) []string {
				if b.Dropped {
					return nil
				}
				return []string{b.WorkspaceID + "/" + b.Template}
			}},
		},
	}

	Flows = Table[*Flow]{
		Name: "flows",
		New:  func() *Flow { return &Flow{} },
		Indexes: []Index[*Flow]{
			// One live flow a subject: a flow's row is deleted when it ends.
			{Name: "subject", Unique: true, Keys: func(f *Flow) []string { return []string{f.Subject} }},
			{Name: "parent", Keys: func(f *Flow) []string { return optional(f.Parent) }},
		},
	}

	Outcomes = Table[*Outcome]{
		Name: "outcomes",
		New:  func() *Outcome { return &Outcome{} },
		Indexes: []Index[*Outcome]{
			{Name: "parent", Keys: func(o *Outcome) []string { return optional(o.Parent) }},
		},
	}

	IdempotencyKeys = Table[*IdempotencyKey]{Name: "idempotency_keys", New: func() *IdempotencyKey { return &IdempotencyKey{} }}
)

// optional is the key of a value that a row may lack.
func optional(v string) []string {
	if v == "" {
		return nil
	}
	return []string{v}
}

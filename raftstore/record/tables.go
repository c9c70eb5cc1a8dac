package record

// The tables, and every index by which their rows are found.
var (
	Clusters = Table[*Cluster]{Name: "cluster", New: func() *Cluster { return &Cluster{} }}

	Workspaces = Table[*Workspace]{
		Name: "workspaces",
		New:  func() *Workspace { return &Workspace{} },
		Indexes: []Index[*Workspace]{
			{Name: "paused", Keys: func(w *Workspace) []string {
				if w.PausedAt.IsZero() {
					return nil
				}
				return []string{"yes"}
			}},
		},
	}

	WorkspaceCreates = Table[*Creates]{Name: "workspace_creates", New: func() *Creates { return &Creates{} }}

	Usages = Table[*Usage]{
		Name: "usage",
		New:  func() *Usage { return &Usage{} },
		Indexes: []Index[*Usage]{
			{Name: "workspace", Keys: func(u *Usage) []string { return []string{u.WorkspaceID} }},
		},
	}

	MeterCursors = Table[*MeterCursor]{Name: "meter_cursors", New: func() *MeterCursor { return &MeterCursor{} }}

	EndedBoxes = Table[*EndedBox]{Name: "ended_boxes", New: func() *EndedBox { return &EndedBox{} }}

	Users = Table[*User]{
		Name: "users",
		New:  func() *User { return &User{} },
		Indexes: []Index[*User]{
			{Name: "workspace", Keys: func(u *User) []string { return u.WorkspaceIDs }},
		},
	}

	Invitations = Table[*Invitation]{
		Name: "invitations",
		New:  func() *Invitation { return &Invitation{} },
		Indexes: []Index[*Invitation]{
			{Name: "workspace", Keys: func(i *Invitation) []string { return []string{i.WorkspaceID} }},
		},
	}

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
			// For the leader's loops, which would look at every sandbox each second. An older
			// replica does not know these, so transactions do not list by them.
			{Name: "expires", Keys: func(s *Sandbox) []string { return optional(s.expires()) }},
			{Name: "moving", Keys: func(s *Sandbox) []string {
				if s.Status == SandboxStarting || s.Status == SandboxDeleting {
					return []string{"yes"}
				}
				return nil
			}},
			{Name: "arriving", Keys: func(s *Sandbox) []string { // by the host that one is being moved to
				if s.Move == nil {
					return nil
				}
				return optional(s.Move.To)
			}},
			{Name: "owner", Keys: func(s *Sandbox) []string {
				if s.Owner == nil {
					return nil
				}
				return []string{s.Owner.Type}
			}},
			{Name: "env", Keys: func(s *Sandbox) []string { return optional(s.EnvID) }},
			{Name: "large_env", Keys: func(s *Sandbox) []string { return s.largeEnv(s.WorkspaceID) }},
		},
	}

	EnvParts = Table[*EnvPart]{
		Name: "env_parts",
		New:  func() *EnvPart { return &EnvPart{} },
		Indexes: []Index[*EnvPart]{
			{Name: "env", Keys: func(e *EnvPart) []string { return []string{e.EnvID} }},
		},
	}

	Snapshots = Table[*Snapshot]{
		Name:  "snapshots",
		New:   func() *Snapshot { return &Snapshot{} },
		Check: checked(snapshotTransitions, func(r *Snapshot) ResourceStatus { return r.Status }),
		Indexes: []Index[*Snapshot]{
			{Name: "workspace", Keys: func(s *Snapshot) []string { return []string{s.WorkspaceID} }},
			{Name: "agent", Keys: func(s *Snapshot) []string { return []string{s.HostID} }},
			{Name: "env", Keys: func(s *Snapshot) []string { return optional(s.EnvID) }},
			{Name: "large_env", Keys: func(s *Snapshot) []string { return s.largeEnv(s.WorkspaceID) }},
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

	Databases = Table[*Database]{
		Name:  "databases",
		New:   func() *Database { return &Database{} },
		Check: checked(databaseTransitions, func(r *Database) DatabaseStatus { return r.Status }),
		Indexes: []Index[*Database]{
			{Name: "workspace", Keys: func(d *Database) []string { return []string{d.WorkspaceID} }},
			{Name: "sandbox", Keys: func(d *Database) []string { return optional(d.SandboxID) }},
			{Name: "cloned_from", Keys: func(d *Database) []string { return optional(d.ClonedFrom) }},
			{Name: "preview", Keys: func(d *Database) []string { return optional(d.PreviewID) }},
		},
	}

	WebhookEndpoints = Table[*WebhookEndpoint]{
		Name: "webhook_endpoints",
		New:  func() *WebhookEndpoint { return &WebhookEndpoint{} },
		Indexes: []Index[*WebhookEndpoint]{
			{Name: "workspace", Keys: func(e *WebhookEndpoint) []string { return []string{e.WorkspaceID} }},
		},
	}

	WebhookDeliveries = Table[*WebhookDelivery]{
		Name:  "webhook_deliveries",
		New:   func() *WebhookDelivery { return &WebhookDelivery{} },
		Check: checked(webhookTransitions, func(r *WebhookDelivery) WebhookStatus { return r.Status }),
		Indexes: []Index[*WebhookDelivery]{
			{Name: "endpoint", Keys: func(d *WebhookDelivery) []string { return []string{d.EndpointID} }},
			{Name: "due", Keys: func(d *WebhookDelivery) []string { return d.due() }},
		},
	}

	Apps = Table[*App]{
		Name:  "apps",
		New:   func() *App { return &App{} },
		Check: checked(appTransitions, func(r *App) AppStatus { return r.Status }),
		Indexes: []Index[*App]{
			{Name: "workspace", Keys: func(a *App) []string { return []string{a.WorkspaceID} }},
			{Name: "sandbox", Keys: func(a *App) []string {
				var out []string
				for _, of := range [][]AppInstance{a.Instances, a.Draining} {
					for _, i := range of {
						out = append(out, i.SandboxID)
					}
				}
				return out
			}},
			{Name: "parent", Keys: func(a *App) []string { return optional(a.ParentID) }},
			{Name: "git_url", Keys: func(a *App) []string { return optional(NormalGitURL(a.GitURL)) }},
		},
	}

	Deployments = Table[*Deployment]{
		Name:  "deployments",
		New:   func() *Deployment { return &Deployment{} },
		Check: checked(deploymentTransitions, func(r *Deployment) DeploymentStatus { return r.Status }),
		Indexes: []Index[*Deployment]{
			{Name: "app", Keys: func(d *Deployment) []string { return []string{d.AppID} }},
			{Name: "sandbox", Keys: func(d *Deployment) []string { return optional(d.SandboxID) }},
			{Name: "snapshot", Keys: func(d *Deployment) []string { return optional(d.SnapshotID) }},
			{Name: "ended", Keys: func(d *Deployment) []string { return optional(d.endedIn()) }},
		},
	}

	// Any number of workspaces may claim a name, and one alone has proven it.
	Domains = Table[*Domain]{
		Name:  "domains",
		New:   func() *Domain { return &Domain{} },
		Check: checked(domainTransitions, func(r *Domain) DomainStatus { return r.Status }),
		Indexes: []Index[*Domain]{
			{Name: "app", Keys: func(d *Domain) []string { return []string{d.AppID} }},
			{Name: "workspace", Keys: func(d *Domain) []string { return []string{d.WorkspaceID} }},
			{Name: "claim", Unique: true, Keys: func(d *Domain) []string { return []string{d.WorkspaceID + "/" + d.Name} }},
			{Name: "verified", Unique: true, Keys: func(d *Domain) []string {
				if d.Status != DomainVerified {
					return nil
				}
				return []string{d.Name}
			}},
			{Name: "due", Keys: func(d *Domain) []string {
				if d.NextCheckAt.IsZero() {
					return nil
				}
				return []string{DomainDue(d.NextCheckAt)}
			}},
		},
	}

	GitInstallations = Table[*GitInstallation]{
		Name: "git_installations",
		New:  func() *GitInstallation { return &GitInstallation{} },
		Indexes: []Index[*GitInstallation]{
			{Name: "workspace", Keys: func(i *GitInstallation) []string { return []string{i.WorkspaceID} }},
		},
	}

	GitReceipts = Table[*GitReceipt]{Name: "git_receipts", New: func() *GitReceipt { return &GitReceipt{} }}

	GitHeads = Table[*GitHead]{
		Name: "git_heads",
		New:  func() *GitHead { return &GitHead{} },
		Indexes: []Index[*GitHead]{
			{Name: "pending", Keys: func(h *GitHead) []string {
				if h.Pending {
					return []string{"yes"}
				}
				return nil
			}},
		},
	}

	GitPreviews = Table[*GitPreview]{
		Name: "git_previews",
		New:  func() *GitPreview { return &GitPreview{} },
		Indexes: []Index[*GitPreview]{
			{Name: "preview", Keys: func(p *GitPreview) []string { return optional(p.PreviewID) }},
		},
	}

	GitReports = Table[*GitReport]{
		Name: "git_reports",
		New:  func() *GitReport { return &GitReport{} },
		Indexes: []Index[*GitReport]{
			{Name: "again", Keys: func(r *GitReport) []string {
				if r.NextAttemptAt.IsZero() {
					return nil
				}
				return []string{"yes"}
			}},
		},
	}

	RepoEnvs = Table[*RepoEnv]{
		Name: "repo_envs",
		New:  func() *RepoEnv { return &RepoEnv{} },
		Indexes: []Index[*RepoEnv]{
			{Name: "workspace", Keys: func(e *RepoEnv) []string { return []string{e.WorkspaceID} }},
		},
	}

	CertFiles = Table[*CertFile]{Name: "cert_files", New: func() *CertFile { return &CertFile{} }}

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
	}

	AuditEntries = Table[*AuditEntry]{
		Name: "audit_entries",
		New:  func() *AuditEntry { return &AuditEntry{} },
		Indexes: []Index[*AuditEntry]{
			{Name: "chain", Keys: func(e *AuditEntry) []string { return []string{e.Chain} }},
			{Name: "pending", Keys: func(e *AuditEntry) []string {
				if e.Sequence == 0 {
					return []string{"yes"}
				}
				return nil
			}},
		},
	}

	AuditChains = Table[*AuditChain]{Name: "audit_chains", New: func() *AuditChain { return &AuditChain{} }}

	IdempotencyKeys = Table[*IdempotencyKey]{
		Name: "idempotency_keys",
		New:  func() *IdempotencyKey { return &IdempotencyKey{} },
		Indexes: []Index[*IdempotencyKey]{
			// An older replica does not know it, so transactions do not list by it.
			{Name: "key", Keys: func(k *IdempotencyKey) []string { return optional(k.Key) }},
		},
	}
)

// optional is the key of a value that a row may lack.
func optional(v string) []string {
	if v == "" {
		return nil
	}
	return []string{v}
}

-- One row a trainable node of a valid execution that no path trains though another path was allowed: fewer
-- than params.j_max were drawn (without a cap there is always room for one more). Of params.roles, that is:
-- what lies under leaves of other roles only is never drawn.
-- Key: group_id, execution_id, node
with recursive roomy as (
    select w.execution_id, w.n_paths, p.roles
    from weights as w
    cross join params as p
    where w.valid and (p.j_max = 0 or w.n_paths < p.j_max)
),

seen as (
    select w.execution_id, l.leaf as node
    from leaves as l
    join (
        values (0, 'main'), (1, 'main-summary'), (2, 'sub-agent'), (3, 'sub-agent-summary')
    ) as r(role_rank, role) on r.role_rank = l.role_rank
    join roomy as w on w.execution_id = l.execution_id
    where list_contains(w.roles, r.role)
    union
    select s.execution_id, s.node
    from segments as s
    semi join roomy as w on w.execution_id = s.execution_id
),

reached as (
    select execution_id, node
    from seen
    union
    select o.execution_id, n.parent_node
    from reached as o
    join nodes as n on n.execution_id = o.execution_id and n.node = o.node
    anti join segments as s on s.execution_id = o.execution_id and s.node = o.node
    where n.parent_node is not null
),

final as (
    select
        n.group_id,
        n.execution_id,
        n.node,
        n.call_id,
        n.depth_end - n.depth_start as length,
        w.n_paths
    from reached as o
    join nodes as n on n.execution_id = o.execution_id and n.node = o.node
    join roomy as w on w.execution_id = o.execution_id
    anti join segments as s on s.execution_id = o.execution_id and s.node = o.node and s.target
    where n.trainable
)

select * from final

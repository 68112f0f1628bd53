-- One row an admitted path of a valid execution, in the order drawn: `path` from 1, at most params.j_max
-- (0: no cap). Each round takes the leaves whose paths still hold unmasked trainable tokens, of these the
-- highest role (in the order of params.roles; roles that are not there are never drawn), and draws one with
-- probability proportional to those tokens; then its whole path is masked. Executions that are lost, or whose
-- assessment is missing, have no paths: they are in no batch.
-- The draw: the smallest -ln(u) / tokens, u from md5 of (seed, execution, round, leaf), is a draw by weight
-- (an exponential race), and the same on every machine, thread count and row order.
-- A path holds a run up to some depth, so masking is a depth for each run: what lies above it is masked.
-- Key: group_id, execution_id, path
with recursive drawing as materialized (
    select
        e.x,
        e.group_id,
        e.execution_id,
        p.seed,
        p.roles,
        case when p.j_max = 0 then 9223372036854775807 else p.j_max end as paths_max
    from tree_executions as e
    semi join valid_executions as v on v.execution_id = e.execution_id
    cross join params as p
),

drawable as materialized (
    select l.x, l.run, l.leaf, l.role_rank, list_position(d.roles, r.role) as place
    from tree_leaves as l
    join drawing as d on d.x = l.x
    join (
        values (0, 'main'), (1, 'main-summary'), (2, 'sub-agent'), (3, 'sub-agent-summary')
    ) as r(role_rank, role) on r.role_rank = l.role_rank
    where place is not null
),

held as materialized (
    select p.x, p.leaf_run, p.run, p.trained
    from run_paths as p
    semi join drawable as d on d.x = p.x and d.run = p.leaf_run
    where p.trained > 0
),

drawn(x, path, leaf_run, new_targets) using key (x, path) as (
    select x, 0::bigint, -1::bigint, 0::bigint
    from drawing
    union
    select
        k.x,
        k.path,
        arg_min(k.run, (k.place, k.key, k.leaf)),
        arg_min(k.tokens, (k.place, k.key, k.leaf))
    from (
        select
            d.x,
            d.path + 1 as path,
            l.run,
            l.leaf,
            l.place,
            w.tokens,
            -ln(
                ((md5_number(concat_ws('|', g.seed, g.execution_id, d.path + 1, l.leaf)) >> 75)::double + 0.5)
                / 9007199254740992.0
            ) / w.tokens as key
        from (
            select h.x, h.leaf_run, sum(greatest(h.trained - coalesce(m.trained, 0), 0))::bigint as tokens
            from held as h
            left join (
                select o.x, o.run, max(o.trained) as trained
                from held as o
                join recurring.drawn as r on r.x = o.x and r.leaf_run = o.leaf_run
                group by o.x, o.run
            ) as m
                on m.x = h.x and m.run = h.run
            group by h.x, h.leaf_run
        ) as w
        join drawn as d on d.x = w.x
        join drawable as l on l.x = w.x and l.run = w.leaf_run
        join drawing as g on g.x = w.x
        where w.tokens > 0 and d.path < g.paths_max
    ) as k
    group by k.x, k.path
),

final as (
    select
        g.group_id,
        g.execution_id,
        d.path,
        l.leaf,
        g.roles[l.place] as role,
        d.new_targets
    from drawn as d
    join drawing as g on g.x = d.x
    join drawable as l on l.x = d.x and l.run = d.leaf_run
    where d.path > 0
)

select * from final

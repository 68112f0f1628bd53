-- One row an admitted path of a valid execution, in the order drawn: `path` from 1, at most params.j_max
-- (0: no cap). Each round takes the leaves whose paths still hold unmasked trainable tokens, of these the
-- highest role (main, main-summary, sub-agent, sub-agent-summary), and draws one with probability
-- proportional to those tokens; then its whole path is masked. Executions that are lost, or whose
-- assessment is missing, have no paths: they are in no batch.
-- The draw: the smallest -ln(u) / tokens, u from md5 of (seed, execution, round, leaf), is a draw by weight
-- (an exponential race), and the same on every machine, thread count and row order.
-- Key: group_id, execution_id, path
with recursive limits as materialized (
    select case when j_max = 0 then 9223372036854775807 else j_max end as paths_max, seed
    from params
),

held as materialized (
    select p.execution_id, p.leaf, p.node, p.length, l.role_rank
    from leaf_paths as p
    semi join valid_executions as v on v.execution_id = p.execution_id
    join leaves as l on l.execution_id = p.execution_id and l.leaf = p.leaf
    where p.trainable
),

drawn(execution_id, path, leaf, new_targets) using key (execution_id, path) as (
    select distinct execution_id, 0::bigint, -1::bigint, 0::bigint
    from held
    union
    select
        w.execution_id,
        w.path,
        arg_min(w.leaf, (w.role_rank, w.key, w.leaf)),
        arg_min(w.tokens, (w.role_rank, w.key, w.leaf))
    from (
        select
            h.execution_id,
            n.path + 1 as path,
            h.leaf,
            h.role_rank,
            sum(h.length)::bigint as tokens,
            -ln(
                (
                    (md5_number(concat_ws('|', m.seed, h.execution_id, n.path + 1, h.leaf)) >> 75)::double
                    + 0.5
                ) / 9007199254740992.0
            ) / sum(h.length) as key
        from held as h
        join drawn as n on n.execution_id = h.execution_id
        join limits as m on n.path < m.paths_max
        anti join (
            select o.execution_id, o.node
            from held as o
            join recurring.drawn as d on d.execution_id = o.execution_id and d.leaf = o.leaf
        ) as masked
            on masked.execution_id = h.execution_id and masked.node = h.node
        group by h.execution_id, n.path, h.leaf, h.role_rank, m.seed
    ) as w
    group by w.execution_id, w.path
),

final as (
    select
        l.group_id,
        d.execution_id,
        d.path,
        d.leaf,
        case l.role_rank
            when 0 then 'main'
            when 1 then 'main-summary'
            when 2 then 'sub-agent'
            else 'sub-agent-summary'
        end as role,
        d.new_targets
    from drawn as d
    join leaves as l on l.execution_id = d.execution_id and l.leaf = d.leaf
    where d.path > 0
)

select * from final

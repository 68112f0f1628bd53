-- One row an admitted path of a valid execution, in the order drawn: `path` from 1, at most params.j_max
-- (0: no cap). Each round takes the leaves whose paths still hold unmasked trainable tokens, of these the
-- highest role (main, main-summary, sub-agent, sub-agent-summary), and draws one with probability
-- proportional to those tokens; then its whole path is masked. Executions that are lost, or whose
-- assessment is missing, have no paths: they are in no batch.
-- The draw: the smallest -ln(u) / tokens, u from md5 of (seed, execution, round, leaf), is a draw by weight
-- (an exponential race), and the same on every machine, thread count and row order.
-- Key: group_id, execution_id, path
with recursive numbered as materialized (
    select
        v.execution_id,
        row_number() over (order by v.execution_id) as number,
        p.seed,
        case when p.j_max = 0 then 9223372036854775807 else p.j_max end as paths_max
    from valid_executions as v
    cross join params as p
),

held as materialized (
    select v.number, p.leaf, p.leaf_rank, p.node, p.length
    from leaf_paths as p
    join numbered as v on v.execution_id = p.execution_id
    where p.trainable
),

drawn(number, path, leaf, new_targets) using key (number, path) as (
    select distinct number, 0::bigint, -1::bigint, 0::bigint
    from held
    union
    select
        k.number,
        k.path,
        arg_min(k.leaf, (k.leaf_rank, k.key, k.leaf)),
        arg_min(k.tokens, (k.leaf_rank, k.key, k.leaf))
    from (
        select
            w.number,
            d.path + 1 as path,
            w.leaf,
            w.leaf_rank,
            w.tokens,
            -ln(
                ((md5_number(concat_ws('|', v.seed, v.execution_id, d.path + 1, w.leaf)) >> 75)::double + 0.5)
                / 9007199254740992.0
            ) / w.tokens as key
        from (
            select h.number, h.leaf, h.leaf_rank, sum(h.length)::bigint as tokens
            from held as h
            anti join (
                select o.number, o.node
                from held as o
                join recurring.drawn as r on r.number = o.number and r.leaf = o.leaf
            ) as masked
                on masked.number = h.number and masked.node = h.node
            group by h.number, h.leaf, h.leaf_rank
        ) as w
        join drawn as d on d.number = w.number
        join numbered as v on v.number = w.number
        where d.path < v.paths_max
    ) as k
    group by k.number, k.path
),

final as (
    select
        l.group_id,
        l.execution_id,
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
    join numbered as v on v.number = d.number
    join leaves as l on l.execution_id = v.execution_id and l.leaf = d.leaf
    where d.path > 0
)

select * from final
